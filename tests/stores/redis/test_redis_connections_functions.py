"""Where the ledger runs as a Function, and where as a script."""

import time
from pathlib import Path
from typing import Any

import pytest

from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import Granted, Released
from dibs.stores.redis import ledger
from dibs.stores.redis.errors import RIGHTS
from dibs.testing.proxy import FaultProxy
from tests.servers.binaries import redis_programs
from tests.servers.redis import RedisServer
from tests.servers.waiting import wait_until
from tests.stores.redis.both_worlds import Side, acquire, granted, release
from tests.stores.redis.counting import calls, reset

FUNCTIONS = {"+fcall", "+function|load"}
SCRIPTS = {"+evalsha", "+script|load"}
OTHERS = [right for right in RIGHTS.replace("NAME", "app").split() if right not in FUNCTIONS]


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def user(*rights: str) -> str:
    return " ".join(["app on >pw -@all", *OTHERS, *rights])


async def cycle(side: Side, server: RedisServer, login: str = "") -> Any:
    """A connection that has been granted something, and has handed it over."""
    backend = await side.open(f"redis://{login}127.0.0.1:{server.port}")
    granted((await backend.apply([acquire("a"), acquire("b", queue=True)]))[0])
    await backend.apply([release("a")])
    granted((await backend.apply([acquire("b", queue=True)]))[0])
    await backend.apply([release("b")])
    return backend


@pytest.mark.parametrize("program", redis_programs(), ids=lambda program: program.label)
def test_every_server_applies_batches(side: Side, tmp_path: Path, program: Any) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, program=program) as server:
            backend = await cycle(side, server)
            reset(server)
            await backend.apply([acquire()])
            found = calls(server)
            has_functions = program.name == "valkey" or program.version >= (7,)
            assert found.get("fcall", 0) == int(has_functions)
            assert found.get("evalsha", 0) == int(not has_functions)

    side.run(case)


@pytest.mark.parametrize(
    "lacking", [FUNCTIONS, {"+fcall"}, {"+function|load"}], ids=["both", "fcall", "load"]
)
def test_without_the_rights_the_same_text_runs_as_a_script(
    side: Side, tmp_path: Path, lacking: set[str]
) -> None:
    async def case() -> None:
        rights = (FUNCTIONS - lacking) | SCRIPTS
        with RedisServer(tmp_path, users=[user(*sorted(rights))]) as server:
            backend = await cycle(side, server, "app:pw@")
            reset(server)
            await backend.apply([acquire(), release()])
            found = calls(server)
            assert found["evalsha"] == 1
            assert not {"fcall", "function|load", "script|load"} & found.keys()

    side.run(case)


def test_the_first_batch_without_the_right_is_applied_once(side: Side, tmp_path: Path) -> None:
    """It is sent again as a whole, as a script: the refusal says nothing of any one key."""

    async def case() -> None:
        with RedisServer(tmp_path, users=[user(*sorted(SCRIPTS))]) as server:
            admin = await side.open(server.url, listen=False)
            backend = await side.open(f"redis://app:pw@127.0.0.1:{server.port}")
            queued = acquire("b", queue=True, inbox=backend.inbox)
            await admin.apply([acquire("a"), queued])
            reset(server)
            replies = await backend.apply([release("a"), acquire("c", key=b"lock:other")])
            assert [type(reply) for reply in replies] == [Released, Granted]
            assert calls(server)["evalsha"] == 2, "the script was missing at first"
            assert (await side.pushed(backend, "granted")).lease == fingerprint("b")

    side.run(case)


def test_a_library_that_an_administrator_has_loaded(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, users=[user("+fcall")]) as server:
            with server.client() as client:
                client.function_load(ledger.LIBRARY)
            await cycle(side, server, "app:pw@")

    side.run(case)


def test_a_restart_without_persistence(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path) as server:
            backend = await cycle(side, server)
            server.kill()
            server.start()
            replies = await side.again(backend, acquire())
            granted(replies[0])
            assert calls(server)["function|load"] == 1

    side.run(case)


def test_a_server_that_takes_too_long_to_load_it(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            url = f"{proxy.url_for(redis_url)}?socket_timeout=0.3s"
            backend = await side.open(url, listen=False)
            with redis_server.client() as client:
                client.function_flush()
            proxy.throttle(20_000)
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match="did not answer in time"):
                await backend.apply([acquire()])
            assert time.monotonic() - began < 1.5

    side.run(case)


def test_a_replica_has_the_function_of_its_master(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path / "a") as master, RedisServer(tmp_path / "b") as replica:
            with replica.client() as client:
                client.replicaof("127.0.0.1", master.port)
                await cycle(side, master)
                with master.client() as other:
                    wait_until(lambda: other.wait(1, 1000) == 1, "the replica has it all")
                client.replicaof("NO", "ONE")
            await cycle(side, replica)
            assert "function|load" not in calls(replica)

    side.run(case)


def test_a_replica_that_was_never_told(side: Side, tmp_path: Path) -> None:
    """That it is a replica is what callers hear, not that it lacks a function."""

    async def case() -> None:
        with RedisServer(tmp_path / "a") as master, RedisServer(tmp_path / "b") as replica:
            with replica.client() as client:
                client.replicaof("127.0.0.1", master.port)
                backend = await side.open(replica.url, listen=False)
                for _ in range(2):
                    with pytest.raises(BackendUnavailable, match=r"replica|loading"):
                        await backend.apply([acquire()])

    side.run(case)


def test_libraries_of_two_releases_are_side_by_side(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        backend = await cycle(side, redis_server)
        name = ledger.FUNCTION[1]
        with redis_server.client() as client:
            client.execute_command(
                "FUNCTION", "LOAD", "REPLACE", ledger.LIBRARY.replace(name, b"dibs_1_0")
            )
        assert isinstance((await backend.apply([acquire()]))[0], Granted)

    side.run(case)
