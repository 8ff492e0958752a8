"""Errors: what they tell, and the right line for a program that is written another way."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from uuid import uuid4

import pytest
import redis

import dibs
import dibs.sync
from dibs import DibsError, Holder, LeaseLost, Status

MODULES = pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])


@pytest.fixture
def aio() -> Any:
    return dibs.connect(f"memory://{uuid4()}")


@pytest.fixture
def blocking() -> Any:
    return dibs.sync.connect(f"memory://{uuid4()}")


ERRORS = [
    value
    for name in vars(dibs)["__all__"]
    if isinstance(value := getattr(dibs, name), type) and issubclass(value, DibsError)
]


def test_they_can_be_caught_as_what_they_are() -> None:
    for error, builtin in {
        dibs.AcquireTimeout: TimeoutError,
        dibs.BackendUnavailable: ConnectionError,
        dibs.Forbidden: PermissionError,
        dibs.InvalidName: ValueError,
        dibs.UnsafeTiming: ValueError,
    }.items():
        assert issubclass(error, builtin)


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_can_be_pickled_and_copied(kind: type[DibsError]) -> None:
    holders = (Holder("fp", "me", 7, 1, (0,), 1.0, 2.0, "why", "held"),)
    error = kind("what happened", key=b"lock:a", position=3, retry_after=1.5, holders=holders)
    error.add_note("a note")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is kind
        assert str(copied) == "what happened"
        assert (copied.key, copied.position, copied.retry_after) == (b"lock:a", 3, 1.5)
        assert (copied.holders, copied.__notes__) == (holders, ["a note"])
    lost = pickle.loads(pickle.dumps(LeaseLost("gone", reason="revoked", key=b"lock:a")))
    assert lost.reason == "revoked"


async def test_a_blocking_primitive_or_client_in_a_running_loop(blocking: Any) -> None:
    for made in (blocking.lock("a"), blocking.semaphore("a", 2)):
        told = f"`from dibs import {type(made).__name__}` and write `async"
        for call in (made.acquire, made.try_acquire, made.status, made.locked):
            with pytest.raises(RuntimeError, match=told):
                call()
    with pytest.raises(RuntimeError, match="a blocking AllOf inside a running event loop"):
        dibs.sync.AllOf(blocking.lock("a")).acquire()
    for call in (
        lambda: blocking.status("a"),
        lambda: blocking.revoke("a", reason="a test"),
        lambda: list(blocking.list()),
        lambda: blocking.attach("handle"),
    ):
        with pytest.raises(RuntimeError, match="`from dibs import connect`, and await"):
            call()


async def test_the_with_of_the_other_side(aio: Any, blocking: Any) -> None:
    lease, both = await aio.lock("a").acquire(), cast(Any, dibs.AllOf(aio.lock("a")))
    for block, told in (
        (aio.lock("a"), r"write `async with`, or import Lock from dibs.sync"),
        (both, "AllOf of dibs is for asyncio: write `async with`"),
        (aio.lock("a").acquire(), "write `async with`, not `with`"),
        (lease, "write `async with`, not `with`"),
    ):
        with pytest.raises(TypeError, match=told):
            with block:
                pass
    await lease.release()
    lease = await asyncio.to_thread(blocking.lock("a").acquire)
    for block, told in (
        (blocking.lock("a"), r"write `with`, or import Lock from dibs for `async"),
        (lease, r"write `with`, not `async with`"),
    ):
        with pytest.raises(TypeError, match=told):
            async with block:
                pass
    lease.release()


def test_releasing_the_primitive(aio: Any, blocking: Any) -> None:
    with pytest.raises(TypeError, match=r"release the lease: `lease = await lock.acquire\(\)`"):
        aio.lock("a").release()
    with pytest.raises(TypeError, match=r"release the lease: `lease = lock.acquire\(\)`"):
        blocking.lock("a").release()
    both: Any = dibs.AllOf(aio.lock("a"))
    with pytest.raises(TypeError, match="release the leases"):
        both.release()
    with pytest.raises(RuntimeError, match="no running event loop"):
        aio.lock("a").acquire().send(None)


async def test_a_forgotten_await_is_an_error(aio: Any) -> None:
    lock, all_of = aio.lock("a"), dibs.AllOf(aio.lock("b"))
    for call in (lock.locked, lock.try_acquire, lock.acquire, all_of.try_acquire):
        with pytest.raises(TypeError, match="write `await` before this call"):
            assert call()
    acquiring = lock.acquire()
    with pytest.raises(AttributeError, match="no token: write `await` before this call"):
        assert acquiring.token
    async with acquiring:
        assert await lock.locked()


HABITS = {
    "blocking_timeout": "write wait= (how long to queue",
    "blocking": "write wait=0 for one try, or try_acquire()",
    "sleep": "waiters do not poll",
    "expire": "write ttl=",
    "worker": "Dibs takes no identity",
    "backend": "write client=connect(url)",
    "max_lock_seconds": "write TaskLock(name, 1, 60)",
    "wiat": "did you mean wait=?",
}


@MODULES
@pytest.mark.parametrize("option", HABITS)
def test_what_other_libraries_call_an_option(module: Any, option: str) -> None:
    client = module.connect("memory://habits")
    wrong, lock = {option: 5}, client.lock("a")
    for call in (
        partial(client.lock, "a", **wrong),
        partial(module.Lock.wraps, "a", **wrong),
        partial(lock.acquire, **wrong),
        partial(client.semaphore, "a", 2, **wrong),
        partial(client.rwlock, "a", **wrong),
        partial(module.AllOf, lock, **wrong),
        partial(module.AllOf(lock).acquire, **wrong),
    ):
        said = refusal(call)
        assert HABITS[option] in said
        assert "__init__" not in said
    for call in (
        partial(client.task_lock, "a", 0, 60, **wrong),
        partial(client.leader_election, "a", **wrong),
    ):
        said = refusal(call)
        assert f"has no option {option}=" in said
        assert "wait=" not in said


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(TypeError) as error:
        call()
    return str(error.value)


MISPLACED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda m, lock: m.Lock("a", 30), "a lock takes one name; options go by keyword: ttl=, wait="),
    (lambda m, lock: m.Semaphore("a", 2, 30), "a semaphore takes a name and a capacity; options"),
    (lambda m, lock: m.TaskLock("a", 0, 60, True), "a tasklock takes a name, min_hold and max_ho"),
    (lambda m, lock: lock.acquire(False), "acquire() takes no positional arguments; options go"),
    (lambda m, lock: lock.acquire(timeout=1), "acquire() has no option timeout=: write wait="),
    (lambda m, lock: lock.acquire(ttl=3), "has no option ttl=: write it in the constructor"),
    (lambda m, lock: lock.try_acquire(wait=1), "got an unexpected keyword argument 'wait'"),
    (lambda m, lock: m.Lock("a", on_lost=5), "on_lost is 5: give a function"),
    (lambda m, lock: m.Lock.from_config("a", {"ttl": 3}), "give a LockConfig"),
    (lambda m, lock: m.TaskLock("a", 0, 1, lock_delay=1), "lock_delay"),
    (lambda m, lock: m.Lock(42), "a name is a str or bytes, not"),
    (lambda m, lock: m.connect({"password": "s3cret"}), "given dict: give the URL of a store"),
    (lambda m, lock: m.connect("memory://", timeout=3), "connect() has no option timeout"),
    (lambda m, lock: m.connect(connect_timeout=1), "and no URL: options belong to a URL"),
    (lambda m, lock: m.connect("memory://", client=object()), "a URL and client="),
    (lambda m, lock: m.Lock("a", client=redis.Redis(password="s3cret")), "is of redis.client.Redi"),
    (lambda m, lock: m.set_default(3), "names no store: give a URL, a client, or None"),
]


@MODULES
@pytest.mark.parametrize(("call", "told"), MISPLACED)
def test_a_misplaced_argument_gets_advice(module: Any, call: Callable[..., Any], told: str) -> None:
    lock = module.connect("memory://misplaced").lock("a")
    said = refusal(lambda: call(module, lock))
    assert told in said
    assert "s3cret" not in said


WRONG: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda c: c.semaphore("gpu", True), TypeError, "capacity is"),
    (lambda c: c.semaphore("gpu", 0), ValueError, "capacity is"),
    (lambda c: c.lock("a", require={"durble"}), ValueError, "'durble', which no .*power-loss"),
    (lambda c: c.status("a", "mutex"), ValueError, "kind is 'mutex': the kinds are lock"),
    (lambda c: c.revoke("a", reason="x", kind="mutex"), ValueError, "kind is 'mutex'"),
    (lambda c: c.status(Status(b"lock:a", 1), "leader"), ValueError, "that of a lock"),
]


@pytest.mark.parametrize(("call", "error", "told"), WRONG)
def test_a_wrong_value_is_refused(
    blocking: Any, call: Callable[[Any], Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        call(blocking)


def test_a_status_names_its_resource(blocking: Any) -> None:
    with blocking.semaphore("gpu/ü", 4).acquire(units=2):
        (found,) = blocking.list("gpu")
        assert (found.kind, found.name) == ("semaphore", "gpu/ü".encode())
        assert (
            blocking.status(found).holders[0].token
            == blocking.status("gpu/ü", "semaphore").last_token
        )
        assert blocking.semaphore(found.name, 4).locked() is False
        assert blocking.revoke(found, reason="a test") == 1
        assert blocking.status(found).holders[0].state == "revoked"
