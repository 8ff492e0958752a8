"""Sockets on this machine, forks, and how connections end."""

import asyncio
import gc
import os
import warnings
from pathlib import Path

import pytest

from dibs import connect
from dibs.errors import BackendUnavailable
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import KEY, Side, acquire, granted, release


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def test_a_unix_socket(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, unix=True) as server:
            url = f"redis://{server.unix_path}?db=1"
            waiter, other = await side.open(url), await side.open(url)
            await other.apply([acquire("a")])
            await waiter.apply([acquire("b", queue=True, inbox=waiter.inbox)])
            await other.apply([release("a")])
            assert (await side.pushed(waiter, "granted")).key == KEY
        with pytest.raises(BackendUnavailable, match=r"redis\.sock can't be reached"):
            await side.open(url)

    side.run(case)


def test_a_fork_leaves_the_parent_s_connections_alone(side: Side, redis_url: str) -> None:
    async def case() -> None:
        backend, other = await side.open(redis_url), await side.open(redis_url)
        token = granted((await backend.apply([acquire("a")]))[0]).token
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                backend.after_fork()
                gc.collect()
                code = 0 if backend.inbox == "" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert granted((await backend.apply([acquire("a")]))[0]).token == token
        await backend.apply([acquire("b", queue=True, inbox=backend.inbox)])
        await other.apply([release("a")])
        assert (await side.pushed(backend, "granted")).key == KEY

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner's own
        side.run(case)


def test_a_child_s_end_closes_nothing_of_the_parent_s(redis_url: str) -> None:
    """A process that a client was forked into, by the ordinary means: `dibs.sync`."""
    from dibs.sync import connect

    with connect(redis_url) as client:
        lease = client.lock("a").acquire()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if lease.lost and client.lock("b").try_acquire() is not None else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lease.renew()
        assert lease.release() is True


def test_it_can_be_opened_again(side: Side, redis_url: str) -> None:
    async def case() -> None:
        backend = await side.open(redis_url)
        await backend.apply([acquire("a")])
        inbox = backend.inbox
        await backend.close()
        assert backend.inbox == ""
        await backend.open()
        assert backend.inbox not in ("", inbox)
        await backend.apply([acquire("b", queue=True, inbox=backend.inbox)])
        await backend.apply([release("a")])
        assert (await side.pushed(backend, "granted")).key == KEY

    side.run(case)


def test_a_loop_that_ends_without_close_leaves_no_socket_open(redis_url: str) -> None:
    async def main() -> None:
        client = connect(redis_url)
        async with client.lock("a"):
            pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []


def test_under_another_event_loop(redis_url: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with connect(redis_url) as client:
            async with client.lock("a"):
                waiter = asyncio.create_task(client.lock("a").acquire(wait=10))
                await asyncio.sleep(0.05)
            await (await waiter).release()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        uvloop.run(main())
        gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []
