"""What a server answers that can't serve us, and what is made of it."""

import http.server
import threading
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable, IncompatibleVersion, NotConfigured
from dibs.model import Inspect, Refused
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import KEY, Side, acquire, granted


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


@pytest.mark.parametrize("tls", [False, True])
def test_an_answer_that_comes_in_many_pieces(side: Side, tmp_path: Path, tls: bool) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, tls=tls) as server:
            backend = await side.open(server.url)
            notes = [letter * 30_000 for letter in "abcdefgh"]
            await backend.apply([acquire(note, capacity=8, note=note) for note in notes])
            (status,) = await backend.apply([Inspect(KEY)])
            assert [holder.note for holder in status.holders] == notes

    side.run(case)


def test_a_replica_that_may_not_be_written(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path / "a") as master, RedisServer(tmp_path / "b") as replica:
            with replica.client() as client:
                client.replicaof("127.0.0.1", master.port)
            backend = await side.open(replica.url, listen=False)
            with pytest.raises(BackendUnavailable, match=r"replica|loading"):
                await backend.apply([acquire()])

    side.run(case)


def test_a_server_without_memory_grants_nothing(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, extra=["maxmemory-policy noeviction"]) as server:
            backend = await side.open(server.url)
            await backend.apply([acquire("a")])
            with server.client() as client:
                client.config_set("maxmemory", 1)
            with pytest.raises(BackendUnavailable, match=r"out of memory.*maxmemory"):
                await backend.apply([acquire("b", key=b"lock:b")])
            with server.client() as client:
                client.config_set("maxmemory", 0)
            granted((await backend.apply([acquire("b", key=b"lock:b")]))[0])

    side.run(case)


def test_a_server_that_does_not_exist(side: Side) -> None:
    port = free_port()

    async def case() -> None:
        with pytest.raises(BackendUnavailable, match=rf"127.0.0.1:{port} can't be reached"):
            await side.open(f"redis://127.0.0.1:{port}")

    side.run(case)


def test_what_is_no_redis_at_all(side: Side) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def case() -> None:
        with pytest.raises(BackendUnavailable, match="can't be reached"):
            await side.open(f"redis://127.0.0.1:{server.server_port}")

    try:
        side.run(case)
    finally:
        server.shutdown()
        server.server_close()


def test_a_database_that_it_does_not_have(side: Side, redis_server: RedisServer) -> None:
    async def case() -> None:
        with pytest.raises(NotConfigured, match="no such database"):
            await side.open(f"redis://127.0.0.1:{redis_server.port}/99")

    side.run(case)


def test_databases_are_apart(side: Side, redis_server: RedisServer, redis_url: str) -> None:
    async def case() -> None:
        one = await side.open(f"redis://127.0.0.1:{redis_server.port}/1")
        two = await side.open(f"redis://127.0.0.1:{redis_server.port}?db=2")
        granted((await one.apply([acquire("a")]))[0])
        granted((await two.apply([acquire("b")]))[0])
        assert isinstance((await one.apply([acquire("b")]))[0], Refused)

    side.run(case)


def test_a_server_without_scripts(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        extra = [f'rename-command {name} ""' for name in ("FCALL", "EVALSHA", "EVAL")]
        with RedisServer(tmp_path, extra=extra) as server:
            backend = await side.open(server.url, listen=False)
            with pytest.raises(IncompatibleVersion, match=r"Redis 6\.2"):
                await backend.apply([acquire()])

    side.run(case)


def test_a_node_of_a_cluster_says_so(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, extra=["cluster-enabled yes"]) as server:
            with server.client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            backend = await side.open(server.url, listen=False)
            with pytest.raises(NotConfigured, match=r"add \?cluster=true"):
                await backend.apply([acquire(key=b"lock:a"), acquire(key=b"lock:b")])

    side.run(case)
