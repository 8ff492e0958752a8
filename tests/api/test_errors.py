"""Errors: what they tell, and the right line for a program that is written another way."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import pytest
import redis

import dibs
import dibs.sync
from dibs import AcquireTimeout, DibsError, LeaseLost, LockConfig, Status
from dibs.locks.base import PROMISES
from dibs.stores.memory import MemoryStore

MODULES = pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])


@pytest.fixture
def aio() -> Any:
    return dibs.connect(f"memory://{uuid4()}")


@pytest.fixture
def blocking() -> Any:
    return dibs.sync.connect(f"memory://{uuid4()}")


# -- the errors -------------------------------------------------------------------------------------


ERRORS = [
    value
    for name in vars(dibs)["__all__"]
    if isinstance(value := getattr(dibs, name), type) and issubclass(value, DibsError)
]


def test_they_can_be_caught_as_what_they_are() -> None:
    for error, builtin in {
        "AcquireTimeout": TimeoutError,
        "BackendUnavailable": ConnectionError,
        "Forbidden": PermissionError,
        "InvalidName": ValueError,
        "UnsafeTiming": ValueError,
    }.items():
        assert issubclass(getattr(dibs, error), builtin)
    assert len(ERRORS) >= 13


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_can_be_pickled_and_copied(kind: type[DibsError]) -> None:
    error = kind("what happened", key=b"lock:a", position=3, retry_after=1.5)
    error.add_note("a note")
    pickled = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for copied in (*map(pickle.loads, pickled), copy.copy(error)):
        assert type(copied) is kind
        assert str(copied) == "what happened"
        assert (copied.key, copied.position, copied.retry_after) == (b"lock:a", 3, 1.5)
        assert copied.__notes__ == ["a note"]


def test_a_pickled_error_keeps_its_holders_and_reason(blocking: Any) -> None:
    with blocking.lock("a", label="me"):
        with pytest.raises(AcquireTimeout) as caught:
            dibs.sync.connect(blocking.url).lock("a").acquire(wait=0)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert copied.holders == caught.value.holders
    assert copied.holders[0].owner.endswith("/me")
    lost = pickle.loads(pickle.dumps(LeaseLost("gone", reason="revoked", key=b"lock:a")))
    assert (lost.reason, lost.key) == ("revoked", b"lock:a")


# -- the wrong side ---------------------------------------------------------------------------------


async def test_a_blocking_primitive_or_client_in_a_running_loop(blocking: Any) -> None:
    for made in (blocking.lock("a"), blocking.semaphore("a", 2)):
        kind = type(made).__name__
        calls: list[Callable[[], Any]] = [made.acquire, made.try_acquire, made.status, made.locked]
        calls.append(partial(made.revoke, reason="a test"))
        for call in calls:
            with pytest.raises(RuntimeError, match=f"`from dibs import {kind}` and write `async"):
                call()
    for call in (
        lambda: blocking.status("a"),
        lambda: blocking.revoke("a", reason="a test"),
        lambda: list(blocking.list()),
        lambda: blocking.attach("handle"),
    ):
        with pytest.raises(RuntimeError, match="`from dibs import connect`, and await"):
            call()


async def test_with_on_the_async_side(aio: Any) -> None:
    lease = await aio.lock("a").acquire()
    for block, told in (
        (aio.lock("a"), r"write `async with`, or import Lock from dibs.sync"),
        (aio.semaphore("s", 2), "import Semaphore from dibs.sync"),
        (aio.lock("a").acquire(), "write `async with`, not `with`"),
        (lease, "write `async with`, not `with`"),
    ):
        with pytest.raises(TypeError, match=told):
            with block:
                pass
    await lease.release()


async def test_async_with_on_the_blocking_side(blocking: Any) -> None:
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


async def test_a_forgotten_await_is_an_error(aio: Any) -> None:
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


# -- options ----------------------------------------------------------------------------------------


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


MISPLACED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda m, lock: m.Lock("a", 30), "a lock takes one name; options go by keyword: ttl=, wait="),
    (lambda m, lock: m.RWLock("a", 30), "a rwlock takes one name; options go by keyword: ttl="),
    (lambda m, lock: m.Semaphore("a", 2, 30), "a semaphore takes a name and a capacity; options"),
    (lambda m, lock: m.TaskLock("a", 0, 60, True), "a tasklock takes a name, min_hold and max_ho"),
    (lambda m, lock: m.LeaderElection("a", 30), "a leader takes one name; options go by keyword"),
    (lambda m, lock: m.Semaphore("a"), "Semaphore.__init__() missing 1 required"),
    (lambda m, lock: m.Lock(), "Lock.__init__() missing 1 required positional argument: 'name'"),
    (lambda m, lock: lock.acquire(False), "acquire() takes no positional arguments; options go"),
    (lambda m, lock: lock.acquire(timeout=1), "acquire() has no option timeout=: write wait="),
    (lambda m, lock: lock.acquire(ttl=3), "has no option ttl=: write it in the constructor"),
    (lambda m, lock: lock.acquire(expire=3), "without a renewal) in the constructor"),
    (lambda m, lock: lock.try_acquire(wait=1), "got an unexpected keyword argument 'wait'"),
    (lambda m, lock: m.Lock("a", on_lost=5), "on_lost is 5: give a function"),
    (lambda m, lock: m.Lock.from_config("a", {"ttl": 3}), "give a LockConfig"),
    (lambda m, lock: m.TaskLock("a", 0, 1, lock_delay=1), "lock_delay"),
    (lambda m, lock: m.connect(3), "given int: give the URL of a store"),
    (lambda m, lock: m.connect({"password": "s3cret"}), "given dict: give the URL of a store"),
    (lambda m, lock: m.connect("memory://", timeout=3), "connect() has no option timeout"),
    (lambda m, lock: m.connect(connect_timeout=1), "and no URL: options belong to a URL"),
    (lambda m, lock: m.connect("memory://", client=object()), "a URL and client="),
    (lambda m, lock: m.Lock("a", client=redis.Redis(password="s3cret")), "is of redis.client.Redi"),
    (lambda m, lock: m.set_default(3), "names no store: give a URL, a client, or None"),
    (lambda m, lock: m.override(b"memory://"), "names no store: give a client"),
]


@MODULES
@pytest.mark.parametrize(("call", "told"), MISPLACED)
def test_a_misplaced_argument_gets_advice(module: Any, call: Callable[..., Any], told: str) -> None:
    lock = module.connect("memory://misplaced").lock("a")
    said = refusal(lambda: call(module, lock))
    assert told in said
    assert "s3cret" not in said


@MODULES
def test_connect_needs_a_known_client(module: Any) -> None:
    for wrong, name in (({}, "dict"), (None, "NoneType")):
        with pytest.raises(dibs.NotConfigured, match=rf"client= is a builtins\.{name}.*temporalio"):
            module.connect(client=wrong)


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_a_promise_that_no_store_makes_is_refused_at_construction(module: Any) -> None:
    for require in ({"durble"}, "durble", ["clock", "durble"]):
        with pytest.raises(
            ValueError, match=r"names 'durble', which no store .*durable.*power-loss"
        ):
            module.Lock("a", require=require)
        with pytest.raises(ValueError, match="durble"):
            module.Semaphore.from_config("a", 2, dibs.LockConfig(), require=require)
    assert module.Lock("a", require=iter(PROMISES)).key == b"lock:a"


def test_every_word_that_a_store_promises_is_known() -> None:
    assert MemoryStore("memory://").capabilities.names() <= PROMISES
    everything = dibs.Capabilities(
        scope="cluster", durable=True, survives=frozenset({"crash", "reboot", "power-loss"})
    )
    assert everything.names() == PROMISES


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("capacity", "error"),
    [
        ("4", TypeError),
        (True, TypeError),
        (2.0, TypeError),
        (0, ValueError),
        (1_000_001, ValueError),
    ],
)
def test_a_capacity_that_makes_no_sense_is_refused(
    module: Any, capacity: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="capacity is"):
        module.Semaphore("gpu", capacity)
    with pytest.raises(error, match="capacity is"):
        module.Semaphore.from_config("gpu", capacity, LockConfig())


@pytest.mark.parametrize("wrong", [42, [1, 2], None, bytearray(b"a"), 1.5])
def test_a_name_is_str_or_bytes(blocking: Any, wrong: Any) -> None:
    for take in (dibs.Lock, dibs.sync.Lock, blocking.lock, blocking.status):
        with pytest.raises(TypeError, match="a name is a str or bytes, not"):
            take(wrong)


def test_the_version_is_that_of_the_package() -> None:
    assert dibs.__version__ == version("dibs")


# -- clients ----------------------------------------------------------------------------------------


def test_closing_a_client_of_the_default_store_leaves_it_open(
    blocking: Any,
) -> None:
    with dibs.override(blocking), dibs.sync.Lock("a") as lease:
        with dibs.sync.connect() as shared:
            assert shared.status("a").holders[0].token == lease.token
        shared.close()
        assert not lease.lost
        lease.renew()
        assert shared.lock("b").acquire().release()
    assert lease.reason is None


def test_closing_a_client_with_a_url_ends_its_leases(blocking: Any) -> None:
    lease = blocking.lock("a").acquire()
    blocking.close()
    assert lease.reason == "closed"


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


def test_an_unknown_kind_is_an_error(blocking: Any) -> None:
    bogus: Any = "mutex"
    for ask in (
        lambda: blocking.status("a", bogus),
        lambda: blocking.revoke("a", reason="x", kind=bogus),
        lambda: list(blocking.list(kind=bogus)),
    ):
        with pytest.raises(ValueError, match="kind is 'mutex': the kinds are lock, semaphore"):
            ask()
    with pytest.raises(ValueError, match="kind is 'leader', and the status is that of a lock"):
        blocking.status(Status(b"lock:a", 1), "leader")


def test_a_semaphore_by_config_works(blocking: Any) -> None:
    config = LockConfig(ttl="1m", wait=0)
    gpus = dibs.sync.Semaphore.from_config("gpu", 2, config, client=blocking)
    assert (gpus.capacity, gpus.config) == (2, config)
    with gpus as one, gpus.acquire() as other:
        assert {*one.slots, *other.slots} == {0, 1}
        assert gpus.try_acquire() is None
        assert gpus.locked()
