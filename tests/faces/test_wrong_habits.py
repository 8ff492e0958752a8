"""Whoever writes it the other way is told the right line."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync


@pytest.fixture
def aio() -> Any:
    return dibs.connect(f"memory://{uuid4()}")


@pytest.fixture
def blocking() -> Any:
    return dibs.sync.connect(f"memory://{uuid4()}")


def test_with_on_the_async_kind(aio: Any) -> None:
    with pytest.raises(TypeError, match=r"write `async with`, or import Lock from dibs.sync"):
        with aio.lock("a"):
            pass
    with pytest.raises(TypeError, match=r"import Semaphore from dibs.sync"):
        with aio.semaphore("s", 2):
            pass
    with pytest.raises(TypeError, match=r"write `async with`, not `with`"):
        with aio.lock("a").acquire():
            pass


async def test_with_on_an_async_lease(aio: Any) -> None:
    lease = await aio.lock("a").acquire()
    with pytest.raises(TypeError, match=r"write `async with`, not `with`"):
        with lease:
            pass
    await lease.release()


async def test_async_with_on_the_blocking_kind(blocking: Any) -> None:
    with pytest.raises(TypeError, match=r"write `with`, or import Lock from dibs for `async"):
        async with blocking.lock("a"):
            pass
    lease = await asyncio.to_thread(blocking.lock("a").acquire)
    with pytest.raises(TypeError, match=r"write `with`, not `async with`"):
        async with lease:
            pass
    lease.release()


async def test_a_blocking_wait_inside_a_running_loop(blocking: Any) -> None:
    lock = blocking.lock("a")
    for attempt in (lock.acquire, lock.__enter__):
        with pytest.raises(RuntimeError, match=r"`from dibs import Lock` and write `async w"):
            attempt()
    assert await asyncio.to_thread(lambda: blocking.lock("a").acquire().release())


def test_releasing_the_primitive(aio: Any, blocking: Any) -> None:
    with pytest.raises(TypeError, match=r"release the lease: `lease = await lock.acquire\(\)`"):
        aio.lock("a").release()
    with pytest.raises(TypeError, match=r"release the lease: `lease = lock.acquire\(\)`"):
        blocking.lock("a").release()


def test_outside_of_any_loop(aio: Any) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        aio.lock("a").acquire().send(None)


def test_the_slot_of_a_lease_on_several(blocking: Any) -> None:
    with blocking.semaphore("s", 4).acquire(units=2) as lease:
        assert lease.slots == (0, 1)
        with pytest.raises(ValueError, match=r"use lease\.slots"):
            _ = lease.slot
    with blocking.lock("a") as lease:
        assert lease.slot == 0


async def test_an_acquisition_is_a_coroutine_to_everybody(aio: Any) -> None:
    """Whatever takes a coroutine takes it, too."""
    lock = aio.lock("a")
    for take in (
        lock.acquire,
        lambda: asyncio.create_task(lock.acquire()),
        lambda: asyncio.wait_for(lock.acquire(), 5),
        lambda: asyncio.ensure_future(lock.acquire()),
        lambda: asyncio.shield(lock.acquire()),
    ):
        lease = await take()
        assert await lease.release()
    (lease,) = await asyncio.gather(lock.acquire())
    assert await lease.release()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lock.acquire())
    assert await task.result().release()


@pytest.mark.parametrize("module", [dibs, dibs.sync])
def test_what_is_no_url_and_no_client_is_told(module: Any) -> None:
    with pytest.raises(TypeError, match="given int: give the URL of a store"):
        module.connect(3)
    with pytest.raises(TypeError, match=r"connect\(\) has no option timeout"):
        module.connect("memory://", timeout=3, call_timeout=3)
    with pytest.raises(TypeError, match=r"client= is b'reports': give what connect\(\) returned"):
        module.Lock("a", client=b"reports")
    with pytest.raises(ValueError, match=r"'redis://h' is a URL, and no name of a store: give"):
        module.Lock("a", client="redis://h")
    with pytest.raises(dibs.NotConfigured, match=r"client= is a builtins\.NoneType"):
        module.connect(client=None)


def test_what_is_no_callback_or_config_is_refused_at_once(aio: Any) -> None:
    with pytest.raises(TypeError, match=r"on_lost is 5: give a function"):
        aio.lock("a", on_lost=5)
    settings: Any = {"ttl": 3}
    with pytest.raises(TypeError, match=r"give a LockConfig"):
        dibs.Lock.from_config("a", settings)
