"""Deadlocks: the right waiter gives way, it learns why, and nobody else does."""

import asyncio
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dibs import AcquireTimeout, Deadlock
from dibs.core.names import fingerprint, wait_key
from dibs.locks.deadlock import DeadlockDetector, Wait, _in_the_way
from dibs.model import MANY, Inspect, Status, Waiter
from dibs.model import Holder as Hold
from tests.locks.test_queue import FullStore
from tests.locks.waits import Beside, pause, time_passes, until, until_queued
from tests.locks.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


class Crosser:
    """Holds one thing, waits for another, and gives both up; beside the test."""

    def __init__(self, w: World, first: Any, second: Any, **asked: Any) -> None:
        self._w, self.first, self.second, self._asked = w, first, second, asked
        self.held: Any = None
        self.may_go = False
        self.left: bool | None = None
        """It was out of the queue when its wait failed."""
        self.beside = Beside(w, self._cross)

    async def _cross(self) -> None:
        get = self._w.get
        self.held = await get(self.first.acquire())
        try:
            await until(self._w, lambda: self.may_go)
            lease = await get(self.second.acquire(**self._asked))
            await get(lease.release())
        except Deadlock:
            waiters = (await get(self.second.status())).waiters
            self.left = all(waiter.owner != self.held.owner for waiter in waiters)
            raise
        finally:
            await get(self.held.release())

    async def holds(self) -> None:
        await until(self._w, lambda: self.held is not None)

    async def waits(self) -> None:
        self.may_go = True
        kind, _, name = self.second.key.decode().partition(":")
        await until_queued(self._w, name, 1, kind)
        self._w.clock.advance(0.1)

    @property
    def done(self) -> bool:
        return self.beside.done

    @property
    def advert(self) -> bytes:
        """The key under which it tells others what it waits for."""
        return wait_key(fingerprint(self.held._id))


async def ring(w: World, *pairs: tuple[Any, Any], **asked: Any) -> list[Crosser]:
    """Each holds its first, then each waits for its second, one after the other."""
    crossers = [Crosser(w, first, second, **asked) for first, second in pairs]
    for each in crossers:
        await each.holds()
    for each in crossers:
        await each.waits()
    return crossers


async def all_end(w: World, crossers: Sequence[Crosser]) -> list[type[BaseException] | None]:
    """Let time pass until all are done; how each ended. No advert stands for what they held."""
    await time_passes(w, lambda: all(each.done for each in crossers))
    errors = [await each.beside.error() for each in crossers]
    await nothing_left(w, crossers)
    return [None if error is None else type(error) for error in errors]


async def nothing_left(w: World, crossers: Sequence[Crosser]) -> None:
    for each in crossers:
        await until(w, lambda each=each: not w.ask(Inspect(each.advert)).holders)  # type: ignore[misc]


def chain(w: World, names: str, *, clients: int, **options: Any) -> list[tuple[Any, Any]]:
    """Each holds its letter and wants the next one's, the last the first's."""
    owners = [w.another() for _ in range(clients)]
    return [
        tuple(owners[n % clients].lock(name, label=f"p{names[n]}", **options) for name in pair)
        for n, pair in enumerate(zip(names, names[1:] + names[0], strict=True))
    ]


@pytest.mark.parametrize(
    ("names", "clients", "reentrant"),
    [("ab", 2, False), ("ab", 1, False), ("abcde", 5, False), ("ab", 2, True)],
)
@in_both_worlds
async def test_the_one_that_began_to_wait_last_gives_way(
    w: World, names: str, clients: int, reentrant: bool
) -> None:
    crossers = await ring(w, *chain(w, names, clients=clients, reentrant=reentrant))
    last = crossers[-1]
    assert await all_end(w, crossers) == [None] * (len(crossers) - 1) + [Deadlock]
    error = await last.beside.error()
    assert isinstance(error, Deadlock)
    message = str(error)
    for each in crossers:
        mine, other = each.first.name, each.second.name
        assert re.search(rf"/p{mine}( \(.+?\))? holds {mine} and waits for {other}", message)
    assert "none of these waits can end" in message
    assert error.key == last.second.key
    assert {holder.token for holder in error.holders} == {each.held.token for each in crossers}
    assert str(pickle.loads(pickle.dumps(error))) == message
    assert last.left
    again = Crosser(w, last.first, last.second)
    again.may_go = True
    assert await all_end(w, [again]) == [None], "it can begin again"


@in_both_worlds
async def test_readers_and_writers_can_be_in_one(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.rwlock("r").read(), one.rwlock("q").write()),
        (two.rwlock("q").read(), two.rwlock("r").write()),
    )
    assert await all_end(w, crossers) == [None, Deadlock]
    assert "holds rwlock q and waits for rwlock r" in str(await crossers[1].beside.error())


async def test_a_wait_for_a_place_in_the_queue_counts_from_its_start(w: World) -> None:
    """The older one gets its place later, and looks later."""
    store = FullStore(w.store)
    one, two = w.another(store), w.another()
    older = Crosser(w, one.lock("b", ttl=60), one.lock("a", ttl=60))
    younger = Crosser(w, two.lock("a", ttl=60), two.lock("b", ttl=60))
    await older.holds()
    await younger.holds()
    older.may_go = True
    await until(w, lambda: store.refused > 0)
    w.clock.advance(0.5)
    await younger.waits()
    w.clock.advance(0.15)
    store.full = False
    assert await all_end(w, [older, younger]) == [None, Deadlock]


@in_both_worlds
async def test_who_waits_to_upgrade_can_be_in_one(w: World) -> None:
    """It reads, and waits for another reader to leave, who waits for a lock that it holds."""
    get, one, two = w.get, w.client, w.another()
    reading: Any = None
    may_go = False

    async def upgrade() -> None:
        nonlocal reading
        lock = await get(one.lock("a").acquire())
        reading = await get(one.rwlock("r").read().acquire())
        try:
            await until(w, lambda: may_go)
            await get(reading.upgrade())
        finally:
            await get(reading.release())
            await get(lock.release())

    upgrading = Beside(w, upgrade)
    await until(w, lambda: reading)
    crossers = await ring(w, (two.rwlock("r").read(), two.lock("a")))
    may_go = True
    await until_queued(w, "r", 1, "rwlock")
    await time_passes(w, lambda: upgrading.done)
    error = await upgrading.error()
    assert isinstance(error, Deadlock)
    assert "holds a and waits for rwlock r" in str(error)
    assert await all_end(w, crossers) == [None]
    assert not (await get(w.client.status("r", "rwlock"))).waiters


@in_both_worlds
async def test_a_chain_is_no_circle(w: World) -> None:
    """Nor is an upgrade that waits for long."""
    one, two, third = w.client, w.another(), w.another()
    end = await w.get(third.lock("c").acquire())
    reader = await w.get(third.rwlock("r").read().acquire())
    crossers = await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("c")))

    async def upgrade() -> None:
        lease = await w.get(w.client.rwlock("r").read().acquire())
        await w.get(lease.upgrade())
        await w.get(lease.release())

    upgrading = Beside(w, upgrade)
    await until_queued(w, "r", 1, "rwlock")
    for _ in range(60):
        w.clock.advance(0.5)
        await pause(w)
    assert not any(each.done for each in crossers)
    assert not upgrading.done
    listed = one.list()
    found = [each async for each in listed] if w.is_async else list(listed)
    kinds = {each.key.partition(b":")[0] for each in found}
    assert kinds == {b"lock", b"rwlock"}, "no list shows the adverts"
    await w.get(end.release())
    await w.get(reader.release())
    assert await all_end(w, crossers) == [None, None]
    await time_passes(w, lambda: upgrading.done)
    await upgrading.result()


@in_both_worlds
async def test_it_can_be_switched_off(w: World) -> None:
    one, two = w.client, w.another()
    off = {"detect_deadlocks": False}
    pairs = [(one.lock("a"), one.lock("b", **off)), (two.lock("b"), two.lock("a", **off))]
    ends = await all_end(w, await ring(w, *pairs, wait=8))
    assert AcquireTimeout in ends
    assert Deadlock not in ends


async def test_a_wait_that_ends_withdraws_what_it_told(w: World) -> None:
    end = await w.another().lock("b").acquire()
    crossers = await ring(w, (w.client.lock("a"), w.client.lock("b")), wait=6)
    await time_passes(w, lambda: w.ask(Inspect(crossers[0].advert)).holders)
    assert await all_end(w, crossers) == [AcquireTimeout]
    crossers = await ring(w, (w.client.lock("a"), w.client.lock("b")))
    await time_passes(w, lambda: w.ask(Inspect(crossers[0].advert)).holders)
    crossers[0].beside.cancel()
    with pytest.raises(asyncio.CancelledError):
        await crossers[0].beside.result()
    await nothing_left(w, crossers)
    await end.release()


async def test_nobody_who_waits_briefly_or_holds_nothing_asks_anything_more(w: World) -> None:
    store = TappedStore(store=w.store)
    client = w.another(store)
    ends = [await w.another().lock(name, ttl=600).acquire() for name in "bc"]
    idle = asyncio.create_task(client.lock("c", ttl=600).acquire())
    crossers = await ring(w, (client.lock("a", ttl=600), client.lock("b", ttl=600)))
    w.clock.advance(0.8)
    for _ in range(20):
        await pause(w)
    sent = [each for batch in (*store.batches, *store.kept) for each in batch]
    assert all(each.key.startswith(b"lock:") for each in sent)
    assert not any(isinstance(each, Inspect) for each in sent)
    await ends[0].release()
    await crossers[0].beside.result()
    for _ in range(40):
        w.clock.advance(0.5)
        await pause(w)
    sent = [each for batch in (*store.batches, *store.kept) for each in batch]
    assert all(each.key.startswith(b"lock:") for each in sent)
    await ends[1].release()
    await (await idle).release()


@pytest.mark.parametrize("what", ["opened", "hold", "advert"])
async def test_a_circle_that_was_opened_between_the_readings_is_none(
    w: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What is held was given up, maybe taken again: then it never stood at one time, but may later."""
    crossers: list[Crosser] = []
    readings, find = 0, DeadlockDetector._find

    async def reading(self: DeadlockDetector, wait: Wait) -> Any:
        nonlocal readings
        found = await find(self, wait)
        if found is None or max(step.record.began for step in found) > found[-1].record.began:
            return found
        readings += 1
        if what == "opened" and readings == 1:
            await crossers[0].held.release()
        if what == "opened" or readings != 2:
            return found
        first, *rest = found
        if what == "hold":
            first = first._replace(hold=replace(first.hold, lease="another"))
        else:
            first = first._replace(record=first.record._replace(lease="another"))
        return (first, *rest)

    monkeypatch.setattr(DeadlockDetector, "_find", reading)
    crossers += await ring(w, *chain(w, "ab", clients=2))
    if what != "opened":
        await time_passes(w, lambda: readings == 2)
        assert not any(each.done for each in crossers)
    assert await all_end(w, crossers) == [None, None if what == "opened" else Deadlock]
    assert readings == (1 if what == "opened" else 4), "it was read twice again, and stood"


PLACE = Waiter("place", "me", 1, 0, 1.0)


def holder(units: int = 1, state: Any = "held") -> Hold:
    return Hold("fp", "they", 7, units, (), 1.0, 1.0, "", state)


@pytest.mark.parametrize(
    ("capacity", "wanted", "hold", "counts"),
    [
        (1, 1, holder(), True),
        (1, 1, holder(state="unclaimed"), True),
        (1, 1, holder(state="retained"), False),  # it ends by itself
        (1, 1, holder(state="revoked"), False),
        (2, 1, holder(), False),  # another one's leaving would do
        (2, 2, holder(), True),
        (4, 2, holder(2), False),
        (4, 2, holder(3), True),
        (MANY, MANY, holder(), True),  # a writer waits for each reader
        (MANY, 1, holder(), False),  # a reader waits in the queue behind a writer, not for readers
        (MANY, 1, holder(MANY), True),
    ],
)
def test_only_who_must_leave_is_in_the_way(
    capacity: int, wanted: int, hold: Hold, counts: bool
) -> None:
    status = Status(b"k", capacity, (hold,), (PLACE,), 1)
    assert bool(_in_the_way(status, Wait(b"k", wanted, "place"), is_ours=False)) is counts
