"""Time-outs, resets, and answers that come too late."""

import asyncio
import time

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Inspect, Release, Released, Renew, Status
from dibs.testing.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import KEY, Side, acquire, granted, release


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def test_a_call_of_threads_waits_as_long_as_it_may(
    redis_server: RedisServer, redis_url: str
) -> None:
    side = Side("blocking")

    async def case() -> None:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            backend = await side.open(proxy.url_for(redis_url), listen=False)
            await backend.apply([acquire(), release()])
            proxy.hang()
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match="did not answer in time"):
                backend.connection.apply([acquire(), Renew(KEY, "a", 30.0)], 0.2)
            assert 0.15 < time.monotonic() - began < 1.0
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match="can't be reached"):
                backend.connection.apply([acquire()], 0.2)
            assert time.monotonic() - began < 1.0
            proxy.heal()
            granted((await side.again(backend, acquire()))[0])

    side.run(case)


def test_an_old_answer_is_never_taken_for_a_new_one(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    """The first call's answer comes just when the second call waits for its own."""

    async def case() -> None:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            backend = await side.open(proxy.url_for(redis_url), listen=False)
            await backend.apply([acquire("a"), release("a")])
            proxy.delay(0.4)
            with pytest.raises((BackendUnavailable, TimeoutError)):
                if side.mode == "async":
                    async with asyncio.timeout(0.2):
                        await backend.apply([acquire("a")])
                else:
                    backend.connection.apply([acquire("a")], 0.2)
            proxy.heal()
            replies = await side.again(backend, Inspect(b"lock:other"))
            assert isinstance(replies[0], Status)
            assert replies[0].key == b"lock:other"
            await side.pause(0.4)
            assert (await backend.apply([Release(KEY, "a")]))[0] == Released()

    side.run(case)


@pytest.mark.parametrize("after", [0, 1, 7, 40])
def test_a_connection_that_is_reset_in_the_middle_of_an_answer(
    side: Side, redis_server: RedisServer, redis_url: str, after: int
) -> None:
    async def case() -> None:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            backend = await side.open(proxy.url_for(redis_url), listen=False)
            token = granted((await backend.apply([acquire("a")]))[0]).token
            proxy.reset_after(after, "to_client")
            with pytest.raises(BackendUnavailable):
                await backend.apply([acquire("a", key=b"lock:other"), acquire("a")])
            proxy.heal()
            assert granted((await side.again(backend, acquire("a")))[0]).token == token

    side.run(case)
