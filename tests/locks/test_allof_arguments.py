"""What can be held together, what can't, and what is said of it."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import AllOf, CapacityWarning, MissingCapability
from dibs.errors import UnsafeTiming
from tests.locks.worlds import World, in_both_worlds

REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda c: (), ValueError, "AllOf is given nothing: name what is to be held"),
    (lambda c: ("a",), TypeError, r"can't hold 'a': give locks, semaphores"),
    (lambda c: (c.lock("a"), None), TypeError, "can't hold None: give locks"),
    (lambda c: (c.rwlock("r"),), TypeError, r"say what for: lock.read\(\) or lock.write\(\)"),
    (lambda c: (c.task_lock("t", 1, 2),), TypeError, "a TaskLock never waits, and stays closed"),
    (lambda c: (c.leader_election("l"),), TypeError, "a LeaderElection is won once"),
    (
        lambda c: (dibs.sync.Lock("a"),),
        TypeError,
        "it is made for threads: take it from dibs, as this AllOf is",
    ),
    (
        lambda c: (dibs.sync.AllOf(dibs.sync.Lock("a")),),
        TypeError,
        "it is made for threads",
    ),
    (
        lambda c: (dibs.sync.RWLock("r").read(),),
        TypeError,
        "it is made for threads",
    ),
    (lambda c: ((c.semaphore("s", 2), 3),), ValueError, "semaphore s has a capacity of 2"),
    (lambda c: ((c.semaphore("s", 2), 0),), ValueError, "semaphore s has a capacity of 2"),
    (lambda c: ((c.lock("a"), 2),), ValueError, "a has a capacity of 1"),
    (lambda c: ((c.semaphore("s", 2), "2"),), TypeError, "the second is a number of units"),
    (lambda c: ((c.semaphore("s", 2), True),), TypeError, "the second is a number of units"),
    (lambda c: ((c.rwlock("r").read(), 2),), ValueError, "a reader takes one, a writer all"),
    (lambda c: ((c.semaphore("s", 2), 1, 1),), TypeError, "give locks, semaphores, pairs"),
    (
        lambda c: (c.rwlock("r").read(), c.lock("a"), c.rwlock("r").write()),
        ValueError,
        r"rwlock r is named for reading and for writing: write\(\) is enough for both",
    ),
    (
        lambda c: ((c.semaphore("s", 3), 2), c.semaphore("s", 3)),
        ValueError,
        "semaphore s is named twice, for 2 and for 1 units: name it once, with as many as are",
    ),
    (
        lambda c: (c.semaphore("s", 3), c.semaphore("s", 4)),
        ValueError,
        "semaphore s is named twice, with another capacity: one lease can't be held in two ways",
    ),
    (
        lambda c: (c.lock("a", ttl=10), c.lock("a", note="why")),
        ValueError,
        "a is named twice, with another ttl and note",
    ),
    (
        lambda c: (c.lock("a", on_lost=print), c.lock("a")),
        ValueError,
        "a is named twice, with another on_lost",
    ),
]


@pytest.mark.parametrize(
    ("members", "kind", "told"), REFUSED, ids=[told[:30] for _, _, told in REFUSED]
)
def test_what_makes_no_sense_is_refused_and_told(
    members: Any, kind: type[Exception], told: str
) -> None:
    client = dibs.connect(f"memory://{uuid4()}")
    with pytest.raises(kind, match=told):
        AllOf(*members(client))


def test_the_blocking_one_says_where_to_take_them_from() -> None:
    with pytest.raises(TypeError, match=r"take it from dibs\.sync, as this AllOf is"):
        dibs.sync.AllOf(dibs.Lock("a"))  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_options_are_checked_at_once(module: Any) -> None:
    lock = module.Lock("a")
    for wrong, kind, told in (
        ({"timeout": 3}, TypeError, "did you mean wait="),
        ({"wait": -1}, ValueError, "negative"),
        ({"ttl": 0.01}, UnsafeTiming, "ttl is 0.01 s"),
        ({"ttl": True}, TypeError, "ttl is True"),
        ({"on_wait": 3}, TypeError, "on_wait is 3"),
    ):
        with pytest.raises(kind, match=told):
            module.AllOf(lock, **wrong)
    with pytest.raises(TypeError, match="write wait="):
        module.AllOf(lock).acquire(timeout=3)
    with pytest.raises(TypeError, match="release the leases"):
        module.AllOf(lock).release()
    assert repr(module.AllOf(lock, module.Semaphore("s", 2))) == "<AllOf a, semaphore s>"


async def test_nothing_waits_in_the_wrong_world() -> None:
    with pytest.raises(TypeError, match=r"AllOf of dibs is for asyncio: write `async with`"):
        with AllOf(dibs.Lock("a")):  # type: ignore[attr-defined]
            pass
    blocking = dibs.sync.AllOf(dibs.sync.Lock("a"))
    with pytest.raises(TypeError, match=r"AllOf of dibs\.sync blocks: write `with`"):
        async with blocking:  # type: ignore[attr-defined]
            pass
    for call in (blocking.acquire, blocking.try_acquire):
        with pytest.raises(RuntimeError, match="a blocking AllOf inside a running event loop"):
            call()
    with pytest.raises(TypeError, match="a coroutine function"):
        dibs.sync.AllOf(dibs.sync.Lock("a"), on_wait=asyncio.sleep)  # type: ignore[arg-type]


@in_both_worlds
async def test_what_describes_the_same_may_be_named_twice(w: World) -> None:
    c = w.client
    pairs: list[Any] = [
        (c.lock("a", wait=3), c.lock("a", wait=4)),
        (c.rwlock("r").read(), c.rwlock("r").read()),
        ((c.semaphore("s", 3), 2), (c.semaphore("s", 3), 2)),
        (c.semaphore("s", 3), (c.semaphore("s", 3), 1)),
    ]
    for pair in pairs:
        leases = await w.get(w.module.AllOf(*pair).acquire())
        assert leases[0] is leases[1]
        await w.get(leases.release())
    same = await w.get(w.module.AllOf(c.lock("a", ttl=3), c.lock("a", ttl=4), ttl=5).acquire())
    assert same[0].ttl == 5
    await w.get(same.release())


@in_both_worlds
async def test_two_clients_are_refused_before_anything_is_acquired(w: World) -> None:
    c, other = w.client, w.another()
    both = w.module.AllOf(c.lock("a"), other.lock("b"))
    with pytest.raises(ValueError, match="a, b are not all of one client"):
        await w.get(both.acquire())
    assert not await w.get(c.lock("a").locked())


@in_both_worlds
async def test_a_client_goes_with_the_default_one_if_it_is_that(w: World) -> None:
    c, other = w.client, w.another()
    both = w.module.AllOf(c.lock("a"), w.module.Lock("b"))
    with dibs.override(c):
        leases = await w.get(both.acquire())
        await w.get(leases.release())
    with dibs.override(other):
        with pytest.raises(ValueError, match="are not all of one client"):
            await w.get(both.acquire())


@in_both_worlds
async def test_what_each_of_them_requires_has_to_be_promised(w: World) -> None:
    bare = w.module.Lock("b", require={"durable"})
    with dibs.override(w.client):
        with pytest.raises(MissingCapability, match="the store can't promise durable"):
            await w.get(w.module.AllOf(w.module.Lock("a"), bare).acquire())
        assert not await w.get(w.module.Lock("a").locked())


@in_both_worlds
async def test_whoever_declares_another_capacity_is_warned(w: World) -> None:
    c = w.client
    held = await w.get(w.another().semaphore("s", 4).acquire(units=4))
    both = w.module.AllOf(c.lock("a"), c.semaphore("s", 2))
    with pytest.warns(CapacityWarning, match="slot 3 is held"):
        assert await w.get(both.try_acquire()) is None
    await w.get(held.release())


@in_both_worlds
async def test_notes_and_priorities_are_for_all_of_them(w: World) -> None:
    c = w.client
    both = w.module.AllOf(c.lock("a", note="mine"), c.lock("b"))
    leases = await w.get(both.acquire(note="move", priority=3))
    for name in "ab":
        (holder,) = (await w.get(c.status(name))).holders
        assert holder.note == "move"
    await w.get(leases.release())
    with pytest.raises(TypeError, match="note is 3"):
        await w.get(both.acquire(note=3))
