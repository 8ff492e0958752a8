"""What a connection to Redis costs, what it hears, and how it reads what servers answer."""

import asyncio
import http.server
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable, IncompatibleVersion, NotConfigured
from dibs.model import Inspect, Refused, Renew
from dibs.stores.redis.aio import LoopDial, LoopLink
from dibs.stores.redis.connection import connect, pack
from dibs.stores.redis.url import read_url
from dibs.testing.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stores.redis.counting import calls, reset
from tests.stores.sides import KEY, Side, acquire, both_sides, granted, release


@both_sides
async def test_each_batch_is_one_call(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await side.open(redis_url)
    await backend.apply([acquire(), release()])
    reset(redis_server)
    granted((await backend.apply([acquire()]))[0])
    assert calls(redis_server)["fcall"] == 1
    await backend.apply([release()])
    assert calls(redis_server)["fcall"] == 2
    keys = [b"lock:%d" % number for number in range(512)]
    await backend.apply([acquire(key=key) for key in keys])
    await backend.apply([Renew(key, "a", 30.0) for key in keys])
    found = calls(redis_server)
    assert found["fcall"] == 4
    assert not {"auth", "select", "ping", "eval", "evalsha", "publish"} & found.keys()


@both_sides
async def test_a_flushed_function_is_loaded_again(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await side.open(redis_url)
    first = granted((await backend.apply([acquire()]))[0])
    with redis_server.client() as client:
        client.function_flush()
    reset(redis_server)
    again = granted((await backend.apply([acquire()]))[0])
    assert again.token == first.token
    assert calls(redis_server)["function|load"] == 1
    await backend.apply([release()])
    assert calls(redis_server)["function|load"] == 1


@both_sides
async def test_nothing_is_granted_for_a_while_after_it_came_back_empty(
    side: Side, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as server:
        connection = await side.open(f"{server.url}?restart_holdoff=600ms")
        for name in "ab":  # a new server is an empty one, too
            (reply,) = await side.again(connection, acquire(name))
            assert isinstance(reply, Refused)
            assert reply.reason == "closed"
            assert 0 < reply.recheck_in <= 0.6
            await side.pause(reply.recheck_in + 0.01)
            granted((await connection.apply([acquire(name)]))[0])
            server.kill()
            server.start()


@both_sides
async def test_a_push_to_oneself_takes_no_way_round(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await side.open(redis_url)
    await backend.apply([acquire("a"), acquire("b", queue=True, inbox=backend.inbox)])
    reset(redis_server)
    await backend.apply([release("a")])
    assert (await backend.notifications(0))[0].event == "granted"
    assert "publish" not in calls(redis_server)


@both_sides
async def test_garbage_in_an_inbox_harms_nobody(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await side.open(redis_url)
    with redis_server.client() as client:
        for garbage in (b"", b"\xff\0", b"1|2|3", b"x" * 100_000):
            client.publish(backend.inbox, garbage)
    await backend.apply([acquire("a"), acquire("b", queue=True, inbox=backend.inbox)])
    await backend.apply([release("a")])
    assert (await side.pushed(backend, "granted")).key == KEY


@both_sides
async def test_a_subscription_ends_with_its_server_and_comes_again(
    side: Side, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as server:
        backend = await side.open(server.url)
        server.kill()
        await side.broken(backend)
        await side.broken(backend)  # it can't be made again yet
        server.start()
        await side.again(backend, acquire("a"))
        await backend.apply([acquire("b", queue=True, inbox=backend.inbox)])
        other = await side.open(server.url)
        await side.resumed(backend)
        await other.apply([release("a")])
        assert (await side.pushed(backend, "granted")).key == KEY


@both_sides
async def test_a_subscription_that_has_gone_silent_is_found_out(
    side: Side, redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("aio", "threads"):
        monkeypatch.setattr(f"dibs.stores.redis.{module}.PING_EVERY", 0.2)

    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        backend = await side.open(proxy.url_for(redis_url))
        assert list(await backend.notifications(1.0)) == []  # pings are answered
        proxy.hang()
        await side.broken(backend, within=20.0)


async def test_an_answer_that_came_while_the_loop_stalled_is_not_late(redis_url: str) -> None:
    settings = read_url(redis_url)
    link = await connect(settings, LoopDial(), settings.endpoints[0])
    limit = 0.05
    assert isinstance(link, LoopLink)
    assert link._transport is not None
    answers = link.ask(pack((b"PING",)), 1, limit)
    sock = link._transport.get_extra_info("socket")
    assert select.select([sock], [], [], 10)[0]
    time.sleep(2 * limit)  # the loop stalls
    assert await answers == [b"PONG"]
    await asyncio.sleep(0)
    assert link.usable
    link.close()


@both_sides
async def test_an_answer_by_tls_comes_in_many_pieces(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path, tls=True) as server:
        backend = await side.open(server.url)
        notes = [letter * 30_000 for letter in "abcdefgh"]
        await backend.apply([acquire(note, capacity=8, note=note) for note in notes])
        (status,) = await backend.apply([Inspect(KEY)])
        assert [holder.note for holder in status.holders] == notes


@both_sides
async def test_a_replica_that_may_not_be_written(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "a") as master, RedisServer(tmp_path / "b") as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)
        backend = await side.open(replica.url, listen=False)
        with pytest.raises(BackendUnavailable, match=r"replica|loading"):
            await backend.apply([acquire()])


@both_sides
async def test_a_server_without_memory_grants_nothing(side: Side, tmp_path: Path) -> None:
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


@pytest.fixture
def web_server() -> Iterator[int]:
    """The port of a server that is no Redis."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@both_sides
async def test_what_is_no_redis_at_all(side: Side, web_server: int) -> None:
    with pytest.raises(BackendUnavailable, match="can't be reached"):
        await side.open(f"redis://127.0.0.1:{web_server}")


@both_sides
async def test_a_database_that_it_does_not_have(side: Side, redis_server: RedisServer) -> None:
    with pytest.raises(NotConfigured, match="no such database"):
        await side.open(f"redis://127.0.0.1:{redis_server.port}/99")


@both_sides
async def test_databases_are_apart(side: Side, redis_server: RedisServer, redis_url: str) -> None:
    one = await side.open(f"redis://127.0.0.1:{redis_server.port}/1")
    two = await side.open(f"redis://127.0.0.1:{redis_server.port}?db=2")
    granted((await one.apply([acquire("a")]))[0])
    granted((await two.apply([acquire("b")]))[0])
    assert isinstance((await one.apply([acquire("b")]))[0], Refused)


@both_sides
async def test_a_server_without_scripts(side: Side, tmp_path: Path) -> None:
    extra = [f'rename-command {name} ""' for name in ("FCALL", "EVALSHA", "EVAL")]
    with RedisServer(tmp_path, extra=extra) as server:
        backend = await side.open(server.url, listen=False)
        with pytest.raises(IncompatibleVersion, match=r"Redis 6\.2"):
            await backend.apply([acquire()])


@both_sides
async def test_a_node_of_a_cluster_says_so(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path, extra=["cluster-enabled yes"]) as server:
        with server.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        backend = await side.open(server.url, listen=False)
        with pytest.raises(NotConfigured, match=r"add \?cluster=true"):
            await backend.apply([acquire(key=b"lock:a"), acquire(key=b"lock:b")])


@both_sides
async def test_a_unix_socket(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path, unix=True) as server:
        url = f"redis://{server.unix_path}?db=1"
        waiter, other = await side.open(url), await side.open(url)
        await other.apply([acquire("a")])
        await waiter.apply([acquire("b", queue=True, inbox=waiter.inbox)])
        await other.apply([release("a")])
        assert (await side.pushed(waiter, "granted")).key == KEY
    with pytest.raises(BackendUnavailable, match=r"redis\.sock can't be reached"):
        await side.open(url)


@both_sides
async def test_pages_that_follow_need_no_search(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await side.open(redis_url)
    keys = sorted(b"lock:n/%d" % number for number in range(40))
    await backend.apply([acquire(key=key) for key in keys])
    reset(redis_server)
    found: list[bytes] = []
    cursor = None
    for _ in range(9):
        page = await backend.scan(b"lock:n/", cursor, 5)
        found += [status.key for status in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == keys
    page = await backend.scan(b"lock:n/3", b"lock:n/2", 99)
    assert [status.key for status in page.items] == keys[23:34]
    assert calls(redis_server)["scan"] == 1


@both_sides
async def test_strange_keys_beside_ours_are_left_alone(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await side.open(redis_url)
    with redis_server.client() as client:
        for name in (b"dibs:", b"dibs:{}", b"dibs:{lock:x", b"lock:x", b"dibs:{a}b}", b"\xff"):
            client.set(name, b"theirs")
    await backend.apply([acquire(key=b"lock:}{%7D\xff\0")])
    page = await backend.scan(b"", None, 100)
    assert [status.key for status in page.items] == [b"lock:}{%7D\xff\0"]


@both_sides
async def test_a_server_that_hangs_ends_the_listing(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    """In the search, whose answers are too long here, and at the keys themselves."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        backend = await side.open(f"{proxy.url_for(redis_url)}?socket_timeout=0.3s")
        keys = [b"lock:n/%03d" % number for number in range(400)]
        await backend.apply([acquire(key=key) for key in keys])
        proxy.throttle(2000)
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="did not answer in time"):
            await backend.scan(b"lock:n/", None, 10)
        assert time.monotonic() - began < 2
        proxy.heal()
        page = await backend.scan(b"lock:n/", None, 10)
        assert [status.key for status in page.items] == keys[:10]
        proxy.hang()
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="did not answer in time"):
            await backend.scan(b"lock:n/", page.cursor, 10)
        assert time.monotonic() - began < 2
