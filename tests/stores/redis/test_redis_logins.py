"""Passwords, ACLs, TLS, and where the ledger runs as a Function or as a script."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Failed, Granted, Released
from dibs.stores.redis import ledger
from dibs.stores.redis.errors import RIGHTS
from dibs.testing.proxy import FaultProxy
from tests.servers.binaries import redis_programs
from tests.servers.redis import RedisServer
from tests.servers.waiting import wait_until
from tests.stores.redis.counting import calls, reset
from tests.stores.sides import KEY, Side, acquire, both_sides, granted, release

PASSWORD = "s3:cr/et@#?&"
QUOTED = "s3%3Acr%2Fet%40%23%3F%26"
NEEDED = RIGHTS.replace("NAME", "app")


async def hand_over(side: Side, url: str) -> None:
    """All that a store is for: a grant, a queue, a push."""
    waiter, other = await side.open(url), await side.open(url)
    await other.apply([acquire("a")])
    await waiter.apply([acquire("b", queue=True, inbox=waiter.inbox)])
    await other.apply([release("a")])
    assert (await side.pushed(waiter, "granted")).key == KEY
    assert len((await waiter.scan(b"lock:", None, 10)).items) == 1


async def refused(side: Side, url: str, told: str) -> None:
    """The login is refused, in plain words, and the password is not among them."""
    with pytest.raises(Forbidden, match=told) as refusal:
        backend = await side.open(url, listen=False)
        await backend.apply([acquire()])
    assert "s3" not in f"{refusal.value} {refusal.value!r} {refusal.value.__cause__!r}"


@both_sides
async def test_a_password(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path, requirepass=PASSWORD) as server:
        host = f"127.0.0.1:{server.port}"
        await hand_over(side, f"redis://:{QUOTED}@{host}")
        told = "Redis requires a password. Add it to the URL.*NOAUTH"
        await refused(side, f"redis://{host}", told)
        await refused(side, f"redis://:s3wrong@{host}", "does not accept.*WRONGPASS")
        await refused(side, f"redis://nobody:{QUOTED}@{host}", "does not accept")


@both_sides
async def test_a_password_for_a_server_that_has_none(side: Side, redis_server: RedisServer) -> None:
    url = f"redis://:s3cret@127.0.0.1:{redis_server.port}"
    await refused(side, url, "it has none")


@both_sides
async def test_a_server_that_repeats_what_it_does_not_know(side: Side, tmp_path: Path) -> None:
    """It answers `unknown command 'AUTH', with args beginning with: …`, and there is the password."""
    extra = ['rename-command AUTH ""']
    with RedisServer(tmp_path, requirepass="s3cret", extra=extra) as server:
        with pytest.raises(IncompatibleVersion, match="unknown command 'AUTH'") as refusal:
            await side.open(f"redis://:s3cret@127.0.0.1:{server.port}")
        assert "s3cret" not in f"{refusal.value}"


@both_sides
async def test_a_user_who_may_do_just_what_is_needed(side: Side, tmp_path: Path) -> None:
    users = [f"app on >{PASSWORD} -@all {NEEDED}"]
    with RedisServer(tmp_path, users=users) as server:
        host = f"127.0.0.1:{server.port}"
        await hand_over(side, f"redis://app:{QUOTED}@{host}")


@both_sides
async def test_users_have_channels_of_their_own(side: Side, tmp_path: Path) -> None:
    """With the rights that are recommended none can overhear another's notifications, or forge any."""
    users = [f"{name} on >pw -@all {RIGHTS.replace('NAME', name)}" for name in ("app", "other")]
    with RedisServer(tmp_path, users=users) as server:
        backend = await side.open(f"redis://app:pw@127.0.0.1:{server.port}")
        with redis.Redis(port=server.port, username="other", password="pw", protocol=2) as other:
            with pytest.raises(redis.exceptions.NoPermissionError):
                other.publish(backend.inbox, b"")
            for pattern in ("dibs:*", "dibs:inbox:*", "dibs:inbox:app:*"):
                with other.pubsub() as channel, pytest.raises(redis.exceptions.NoPermissionError):
                    channel.psubscribe(pattern)
                    channel.get_message(timeout=10)


@pytest.mark.parametrize(
    ("missing", "listen"), [("+fcall", False), ("+subscribe", True), ("~dibs:*", False)]
)
@both_sides
async def test_a_user_who_lacks_a_right(
    side: Side, tmp_path: Path, missing: str, listen: bool
) -> None:
    user = f"app on >{PASSWORD} -@all {NEEDED}".replace(missing, "")
    with RedisServer(tmp_path, users=[user]) as server:
        url = f"redis://app:{QUOTED}@127.0.0.1:{server.port}"
        with pytest.raises(Forbidden, match=r"ACL does not allow it.*NOPERM"):
            backend = await side.open(url, listen=listen)
            await backend.apply([acquire()])


@both_sides
async def test_keys_that_a_user_may_not_touch_cost_the_others_nothing(
    side: Side, tmp_path: Path
) -> None:
    rights = NEEDED.replace("~dibs:*", "~dibs:{lock:mine/*")
    user = f"app on >{PASSWORD} -@all {rights}"
    with RedisServer(tmp_path, users=[user]) as server:
        backend = await side.open(f"redis://app:{QUOTED}@127.0.0.1:{server.port}")
        mine = [acquire(key=b"lock:mine/%d" % number) for number in range(3)]
        replies = await backend.apply([*mine[:2], acquire(key=b"lock:theirs"), mine[2]])
        assert [type(reply) for reply in replies] == [Granted, Granted, Failed, Granted]
        assert replies[2].reason == "forbidden"
        assert "NOPERM" in replies[2].detail
        with pytest.raises(Forbidden):
            await backend.apply([acquire(key=b"lock:theirs")])


# ---- TLS ------------------------------------------------------------------------------------------


@both_sides
async def test_tls(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path, tls=True) as server:
        base = f"rediss://localhost:{server.port}/0"
        trusting = f"{base}?ssl_ca_certs={server.certificate}"
        await hand_over(side, trusting)
        await side.open(f"{base}?ssl_cert_reqs=none")
        await side.open(f"{trusting}&ssl_check_hostname=false".replace("localhost", "127.0.0.1"))
        with pytest.raises(BackendUnavailable, match="name the CA with ssl_ca_certs"):
            await side.open(base)
        with pytest.raises(BackendUnavailable, match="does this port speak TLS"):
            await side.open(f"redis://localhost:{server.port}?socket_connect_timeout=1s")
        with pytest.raises(NotConfigured, match=r"TLS can't be set up with .*nowhere\.pem"):
            await side.open(f"{base}?ssl_ca_certs={tmp_path}/nowhere.pem")


@both_sides
async def test_a_plain_server_is_not_spoken_to_by_tls(
    side: Side, redis_server: RedisServer
) -> None:
    with pytest.raises(BackendUnavailable, match="does this port speak TLS"):
        await side.open(f"rediss://localhost:{redis_server.port}?socket_connect_timeout=1s")


@both_sides
async def test_a_certificate_of_the_client_s(side: Side, tmp_path: Path) -> None:
    mine = own_certificate(tmp_path)
    with RedisServer(tmp_path / "server", tls=True) as server:
        with server.client() as client:
            client.config_set("tls-ca-cert-file", str(mine))
            client.config_set("tls-auth-clients", "yes")
        base = f"rediss://localhost:{server.port}?ssl_ca_certs={server.certificate}"
        key = mine.with_suffix(".key")
        await hand_over(side, f"{base}&ssl_certfile={mine}&ssl_keyfile={key}")
        with pytest.raises(BackendUnavailable):
            await side.open(base)


def own_certificate(folder: Path) -> Path:
    """Signed by itself, which is enough for a server that trusts just this one."""
    certificate = folder / "client.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=client"
    subprocess.run(
        [*command.split(), "-keyout", certificate.with_suffix(".key"), "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate


AT_ONCE = ["repl-diskless-sync-delay 0"]
FUNCTIONS = {"+fcall", "+function|load"}
SCRIPTS = {"+evalsha", "+script|load"}
OTHERS = [right for right in RIGHTS.replace("NAME", "app").split() if right not in FUNCTIONS]


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
@both_sides
async def test_every_server_applies_batches(side: Side, tmp_path: Path, program: Any) -> None:
    with RedisServer(tmp_path, program=program) as server:
        backend = await cycle(side, server)
        reset(server)
        await backend.apply([acquire()])
        found = calls(server)
        has_functions = program.name == "valkey" or program.version >= (7,)
        assert found.get("fcall", 0) == int(has_functions)
        assert found.get("evalsha", 0) == int(not has_functions)


@pytest.mark.parametrize(
    "lacking", [FUNCTIONS, {"+fcall"}, {"+function|load"}], ids=["both", "fcall", "load"]
)
@both_sides
async def test_without_the_rights_the_same_text_runs_as_a_script(
    side: Side, tmp_path: Path, lacking: set[str]
) -> None:
    rights = (FUNCTIONS - lacking) | SCRIPTS
    with RedisServer(tmp_path, users=[user(*sorted(rights))]) as server:
        backend = await cycle(side, server, "app:pw@")
        reset(server)
        await backend.apply([acquire(), release()])
        found = calls(server)
        assert found["evalsha"] == 1
        assert not {"fcall", "function|load", "script|load"} & found.keys()


@both_sides
async def test_the_first_batch_without_the_right_is_applied_once(
    side: Side, tmp_path: Path
) -> None:
    """It is sent again as a whole, as a script: the refusal says nothing of any one key."""
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


@both_sides
async def test_a_library_that_an_administrator_has_loaded(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path, users=[user("+fcall")]) as server:
        with server.client() as client:
            client.function_load(ledger.LIBRARY)
        await cycle(side, server, "app:pw@")


@both_sides
async def test_a_server_that_takes_too_long_to_load_it(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
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


@both_sides
async def test_a_replica_has_the_function_of_its_master(side: Side, tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path / "a", extra=AT_ONCE) as master,
        RedisServer(tmp_path / "b") as replica,
    ):
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)
            await cycle(side, master)
            with master.client() as other:
                wait_until(lambda: other.wait(1, 1000) == 1, "the replica has it all")
            client.replicaof("NO", "ONE")
        reset(replica)
        await cycle(side, replica)
        assert "function|load" not in calls(replica)


@both_sides
async def test_libraries_of_two_releases_are_side_by_side(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await cycle(side, redis_server)
    name = ledger.FUNCTION[1]
    with redis_server.client() as client:
        client.execute_command(
            "FUNCTION", "LOAD", "REPLACE", ledger.LIBRARY.replace(name, b"dibs_1_0")
        )
    assert isinstance((await backend.apply([acquire()]))[0], Granted)
