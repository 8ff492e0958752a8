"""Round trips, counted by the server; and what is mended in silence."""

from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Refused, Released, Renew, Renewed
from dibs.testing.connections import TestedConnection as Connection
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import KEY, Side, acquire, granted, release
from tests.stores.redis.counting import calls, ours, reset


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def test_each_batch_is_one_call(side: Side, redis_server: RedisServer, redis_url: str) -> None:
    async def case() -> None:
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
        unasked = {
            "auth",
            "select",
            "ping",
            "client|setname",
            "eval",
            "evalsha",
            "function|load",
            "publish",
        }
        assert not unasked & found.keys()

    side.run(case)


def test_a_client_s_cycle_is_two_calls(redis_server: RedisServer, redis_url: str) -> None:
    from dibs.sync import connect

    with connect(redis_url) as client:
        lock = client.lock("a")
        with lock:
            pass
        reset(redis_server)
        for _ in range(10):
            with lock:
                pass
        assert calls(redis_server)["fcall"] == 20


def test_two_connections_for_a_listener_and_one_for_others(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        before = len(ours(redis_server))
        await side.open(redis_url, listen=False)
        assert len(ours(redis_server)) - before == 1
        await side.open(redis_url)
        assert len(ours(redis_server)) - before == 3

    side.run(case)


def test_a_flushed_function_is_loaded_again(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
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

    side.run(case)


def test_a_connection_that_was_closed_while_idle(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        backend = await side.open(redis_url)
        await backend.apply([acquire()])
        await side.pause(1.1)
        with redis_server.client() as client:
            for each in ours(redis_server, subscribed=False):
                client.client_kill_filter(_id=each["id"])
        await side.pause(0.05)
        assert (await backend.apply([release()]))[0] == Released()

    side.run(case)


def test_a_restart_without_persistence(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path) as server:
            backend = await side.open(server.url)
            first = granted((await backend.apply([acquire()]))[0])
            server.kill()
            with pytest.raises(BackendUnavailable, match=f"{server.port}"):
                await backend.apply([acquire()])
            with pytest.raises(BackendUnavailable, match="check that the server runs"):
                await backend.apply([acquire()])
            server.start()
            (reply,) = await side.again(backend, acquire("b"))
            assert granted(reply).token > first.token

    side.run(case)


def test_a_restart_that_kept_everything(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, persistence="always") as server:
            backend = await side.open(server.url)
            await backend.apply([acquire()])
            server.kill()
            server.start()
            replies = await side.again(backend, acquire("b"), Renew(KEY, "a", 30.0))
            assert [type(reply) for reply in replies] == [Refused, Renewed]

    side.run(case)


def test_nothing_is_granted_for_a_while_after_it_came_back_empty(
    side: Side, tmp_path: Path
) -> None:
    async def case() -> None:
        with RedisServer(tmp_path) as server:
            url = f"{server.url}?restart_holdoff=600ms"
            backend = await side.open(url)
            await side.pause(await closed_for(backend))
            granted((await backend.apply([acquire("a")]))[0])
            server.kill()
            server.start()
            (reply,) = await side.again(backend, acquire("b"))
            assert isinstance(reply, Refused)
            assert reply.reason == "closed"
            await side.pause(reply.recheck_in + 0.01)
            granted((await backend.apply([acquire("b")]))[0])

    async def closed_for(backend: Connection) -> float:
        (reply,) = await backend.apply([acquire("a")])
        assert isinstance(reply, Refused)
        assert 0 < reply.recheck_in <= 0.6
        return reply.recheck_in + 0.01

    side.run(case)
