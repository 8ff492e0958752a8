"""Listing what is in use."""

import signal
import time

import pytest

from dibs.errors import BackendUnavailable
from dibs.stores.redis import RedisStore
from dibs.testing.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import Side, acquire
from tests.stores.redis.counting import calls, reset


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def test_pages_that_follow_need_no_search(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
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

    side.run(case)


def test_a_page_by_a_cursor_that_nobody_remembers(side: Side, redis_url: str) -> None:
    async def case() -> None:
        keys = sorted(b"lock:n/%d" % number for number in range(20))
        first = await side.open(redis_url)
        await first.apply([acquire(key=key) for key in keys])
        page = await first.scan(b"lock:n/", None, 5)
        other = await side.open(RedisStore(redis_url))
        rest = await other.scan(b"lock:n/", page.cursor, 100)
        assert [status.key for status in rest.items] == keys[5:]
        assert rest.cursor is None

    side.run(case)


def test_strange_keys_beside_ours_are_left_alone(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        backend = await side.open(redis_url)
        with redis_server.client() as client:
            for name in (b"dibs:", b"dibs:{}", b"dibs:{lock:x", b"lock:x", b"dibs:{a}b}", b"\xff"):
                client.set(name, b"theirs")
        await backend.apply([acquire(key=b"lock:}{%7D\xff\0")])
        page = await backend.scan(b"", None, 100)
        assert [status.key for status in page.items] == [b"lock:}{%7D\xff\0"]

    side.run(case)


def test_a_server_that_hangs_ends_the_listing(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    """In the search, whose answers are too long here, and at the keys themselves."""

    async def case() -> None:
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

    side.run(case)


def test_nudges_from_a_signal_handler(redis_url: str) -> None:
    side = Side("blocking")

    async def case() -> None:
        backend = await side.open(redis_url)
        previous = signal.signal(signal.SIGALRM, lambda *_: backend.wake())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            began = time.monotonic()
            assert list(await backend.notifications(10)) == []
            assert time.monotonic() - began < 5
        finally:
            signal.signal(signal.SIGALRM, previous)

    side.run(case)
