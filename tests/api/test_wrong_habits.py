"""Whoever writes it the other way is told the right line."""

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import pytest
import redis

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


def test_releasing_the_primitive(aio: Any, blocking: Any) -> None:
    with pytest.raises(TypeError, match=r"release the lease: `lease = await lock.acquire\(\)`"):
        aio.lock("a").release()
    with pytest.raises(TypeError, match=r"release the lease: `lease = lock.acquire\(\)`"):
        blocking.lock("a").release()


def test_outside_of_any_loop(aio: Any) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        aio.lock("a").acquire().send(None)


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
    with pytest.raises(
        TypeError, match=r"client= is of builtins.bytes: give what connect\(\) returned"
    ):
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


HABITS = [
    ("blocking_timeout", "write wait= (how long to queue"),
    ("blocking", "write wait=0 for one try, or try_acquire()"),
    ("sleep", "waiters do not poll"),
    ("lease_time", "write ttl="),
    ("retry_interval", "waiters do not poll"),
    ("expire", "write ttl="),
    ("timeout", "wait= (how long to queue"),
    ("worker", "Dibs takes no identity"),
    ("backend", "write client=connect(url)"),
    ("max_lock_seconds", "write TaskLock(name, 1, 60)"),
    ("wiat", "did you mean wait=?"),
]


@pytest.mark.parametrize(("option", "told"), HABITS)
def test_what_other_libraries_call_an_option(
    aio: Any, blocking: Any, option: str, told: str
) -> None:
    wrong: Any = {option: 5}
    calls: list[Callable[[], Any]] = []
    for client, module in ((aio, dibs), (blocking, dibs.sync)):
        lock = client.lock("a")
        calls += [
            partial(client.lock, "a", **wrong),
            partial(module.Lock, "a", **wrong),
            partial(module.Lock.wraps, "a", **wrong),
            partial(lock.acquire, **wrong),
            partial(client.semaphore, "a", 2, **wrong),
            partial(client.rwlock, "a", **wrong),
            partial(module.AllOf, lock, **wrong),
            partial(module.AllOf(lock).acquire, **wrong),
        ]
        without_wait = [
            partial(client.task_lock, "a", 0, 60, **wrong),
            partial(client.leader_election, "a", **wrong),
        ]
        for each in without_wait:
            said = refusal(each)
            assert f"has no option {option}=" in said
            assert "wait=" not in said
    for call in calls:
        said = refusal(call)
        assert told in said
        assert "__init__" not in said


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(TypeError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("module", [dibs, dibs.sync])
def test_what_is_given_in_the_wrong_place_is_told(module: Any) -> None:
    lock = module.connect(f"memory://{uuid4()}").lock("a")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: module.Lock("a", 30), "a lock takes one name; options go by keyword: ttl=, wait="),
        (lambda: module.RWLock("a", 30), "a rwlock takes one name; options go by keyword: ttl="),
        (lambda: module.Semaphore("a", 2, 30), "a semaphore takes a name and a capacity; options"),
        (
            lambda: module.TaskLock("a", 0, 60, True),
            "a tasklock takes a name, min_hold and max_hold;",
        ),
        (lambda: module.LeaderElection("a", 30), "a leader takes one name; options go by keyword"),
        (lambda: module.Semaphore("a"), "Semaphore.__init__() missing 1 required"),
        (module.Lock, "Lock.__init__() missing 1 required positional argument: 'name'"),
        (lambda: lock.acquire(False), "acquire() takes no positional arguments; options go by key"),
        (lambda: lock.acquire(timeout=1), "acquire() has no option timeout=: write wait="),
        (lambda: lock.acquire(ttl=3), "acquire() has no option ttl=: write it in the constructor"),
        (lambda: lock.acquire(expire=3), "without a renewal) in the constructor"),
        (
            lambda: lock.try_acquire(wait=1),
            "try_acquire() got an unexpected keyword argument 'wait'",
        ),
    ]
    for call, told in calls:
        with pytest.raises(TypeError) as error:
            call()
        assert told in str(error.value)


async def test_a_forgotten_await_is_told(aio: Any) -> None:
    lock, all_of, tasks = aio.lock("a"), dibs.AllOf(aio.lock("b")), aio.task_lock("c", 0, 60)
    calls = [lock.locked, lock.try_acquire, lock.acquire, all_of.try_acquire, tasks.try_acquire]
    for call in (*calls, aio.rwlock("d").locked):
        with pytest.raises(TypeError, match="write `await` before this call"):
            assert call()
    acquiring = lock.acquire()
    with pytest.raises(AttributeError, match="no token: write `await` before this call"):
        assert acquiring.token
    async with acquiring:
        assert await lock.locked()


def test_the_version_is_told() -> None:
    assert dibs.__version__ == version("dibs")


@pytest.mark.parametrize("module", [dibs, dibs.sync])
def test_a_client_of_another_library_is_named_by_its_class(module: Any) -> None:
    with pytest.raises(TypeError) as error:
        module.Lock("a", client=redis.Redis(password="s3cret"))
    assert str(error.value).startswith("client= is of redis.client.Redis: give what connect()")
    assert len(str(error.value)) < 120
