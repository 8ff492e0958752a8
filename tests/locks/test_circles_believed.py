"""What a search believes of what others tell of themselves."""

from dataclasses import replace
from typing import Any

import pytest

from dibs import Deadlock
from dibs.core.names import fingerprint, wait_key
from dibs.locks.deadlock import DeadlockDetector, Wait, _in_the_way
from dibs.model import MANY, Holder, Inspect, Status, Waiter
from tests.locks.circles import Crosser, all_done, ask, nothing_left, outcomes, ring
from tests.locks.waits import Beside, pause, time_passes, until, until_queued
from tests.locks.worlds import World, in_both_worlds


async def broken_between(w: World, monkeypatch: pytest.MonkeyPatch, act: Any) -> list[Crosser]:
    """A circle, in which `act` is done each time after the first reading has found it."""
    readings = 0
    find = DeadlockDetector._find

    async def reading(self: DeadlockDetector, wait: Wait) -> Any:
        nonlocal readings
        found = await find(self, wait)
        if found is not None and found[-1].record.began == max(s.record.began for s in found):
            readings += 1
            if readings == 1:
                await act()
        return found

    monkeypatch.setattr(DeadlockDetector, "_find", reading)
    one, two = w.client, w.another()
    return await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a")))


async def test_a_circle_that_was_opened_between_the_readings_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World("async")
    opened = False

    async def open_it() -> None:
        nonlocal opened
        opened = True
        await crossers[0].held.release()

    crossers: list[Crosser] = []
    crossers += await broken_between(w, monkeypatch, open_it)
    await time_passes(w, all_done(crossers))
    assert opened
    assert await outcomes(crossers) == [None, None]


@pytest.mark.parametrize("what", ["hold", "advert"])
async def test_one_of_other_leases_of_the_same_keys_is_another(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What is held was given up and taken again between the readings: it never stood at one time."""
    w = World("async")
    readings, find = 0, DeadlockDetector._find

    async def reading(self: DeadlockDetector, wait: Wait) -> Any:
        nonlocal readings
        found = await find(self, wait)
        if found is None or max(step.record.began for step in found) > found[-1].record.began:
            return found
        readings += 1
        if readings % 2 or readings > 2:
            return found
        first, *rest = found
        if what == "hold":
            first = first._replace(hold=replace(first.hold, lease="another"))
        else:
            first = first._replace(record=first.record._replace(lease="another"))
        return (first, *rest)

    monkeypatch.setattr(DeadlockDetector, "_find", reading)
    one, two = w.client, w.another()
    crossers = await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a")))
    await time_passes(w, lambda: readings == 2)
    assert not any(each.done for each in crossers)
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]
    assert readings == 4, "it was read twice again, and stood"


async def test_a_grant_that_comes_as_it_begins_to_look_is_not_missed() -> None:
    w = World("async")
    end = await w.another().lock("b", ttl=600).acquire()
    crossers = await ring(w, (w.client.lock("a", ttl=600), w.client.lock("b", ttl=600)))
    for _ in range(20):
        await pause(w)
    await end.release()  # it is pushed, and before the push is read …
    w.clock.advance(1)  # … the time has come to look
    await crossers[0].beside.result()


PLACE = Waiter("place", "me", 1, 0, 1.0)


def holder(units: int = 1, state: Any = "held") -> Holder:
    return Holder("fp", "they", 7, units, (), 1.0, 1.0, "", state)


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
    capacity: int, wanted: int, hold: Holder, counts: bool
) -> None:
    status = Status(b"k", capacity, (hold,), (PLACE,), 1)
    assert bool(_in_the_way(status, Wait(b"k", wanted, "place"), is_ours=False)) is counts


def test_who_is_no_longer_in_the_queue_waits_for_nobody() -> None:
    gone = Wait(b"k", 1, "another")
    few, many = (Status(b"k", 1, (holder(),), (PLACE,), waiting) for waiting in (1, 200))
    assert not _in_the_way(few, gone, is_ours=False)
    assert not _in_the_way(few, gone, is_ours=True)
    assert not _in_the_way(many, gone, is_ours=False), "it may have left its advert behind"
    assert _in_the_way(many, gone, is_ours=True), "behind those who are named"


@in_both_worlds
async def test_who_takes_all_of_several_can_be_in_one_with_others(w: World) -> None:
    """It holds the first of its keys, and waits for the second."""
    one, two = w.client, w.another()
    last = await w.get(two.lock("b").acquire())

    async def all_of_them() -> None:
        leases = await w.get(w.module.AllOf(one.lock("a"), one.lock("b")).acquire())
        await w.get(leases.release())

    taking = Beside(w, all_of_them)
    await until_queued(w, "b", 1)
    w.clock.advance(0.1)

    async def back_to_front() -> None:
        last.adopt()
        await w.get(two.lock("a").acquire())

    waiting = Beside(w, back_to_front)
    await time_passes(w, lambda: waiting.done)
    assert isinstance(await waiting.error(), Deadlock)
    await w.get(last.release())
    await time_passes(w, lambda: taking.done)
    await taking.result()


@in_both_worlds
async def test_what_is_held_more_than_once_counts_too(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.lock("a", reentrant=True), one.lock("b", reentrant=True)),
        (two.lock("b", reentrant=True), two.lock("a", reentrant=True)),
    )
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]


@in_both_worlds
async def test_who_waits_to_upgrade_can_be_in_one(w: World) -> None:
    """It reads, and waits for another reader to leave, who waits for a lock that it holds."""
    get, one, two = w.get, w.client, w.another()
    leases: list[Any] = []
    may_go = False

    async def upgrade() -> None:
        lock, reading = (
            await get(one.lock("a").acquire()),
            await get(one.rwlock("r").read().acquire()),
        )
        leases.append(reading)
        try:
            await until(w, lambda: may_go)
            await get(reading.upgrade())
        finally:
            await get(reading.release())
            await get(lock.release())

    upgrading = Beside(w, upgrade)
    await until(w, lambda: bool(leases))
    crossers = await ring(w, (two.rwlock("r").read(), two.lock("a")))
    may_go = True
    await until_queued(w, "r", 1, "rwlock")
    await time_passes(w, lambda: upgrading.done)
    error = await upgrading.error()
    assert isinstance(error, Deadlock)
    assert "holds a and waits for rwlock r" in str(error)
    await crossers[0].beside.result()
    await nothing_left(w, *crossers)
    assert not (await get(w.client.status("r", "rwlock"))).waiters


@in_both_worlds
async def test_who_waits_long_to_upgrade_is_in_no_circle_of_its_own(w: World) -> None:
    reader = await w.get(w.another().rwlock("r").read().acquire())
    leases: list[Any] = []

    async def upgrade() -> None:
        leases.append(await w.get(w.client.rwlock("r").read().acquire()))
        await w.get(leases[0].upgrade())

    upgrading = Beside(w, upgrade)
    await until_queued(w, "r", 1, "rwlock")
    for _ in range(30):
        w.clock.advance(0.25)
        await pause(w)
    assert not upgrading.done
    await w.get(reader.release())
    await time_passes(w, lambda: upgrading.done)
    await upgrading.result()
    assert leases[0].mode == "write"
    while (await ask(w.client, Inspect(wait_key(fingerprint(leases[0]._id))))).holders:
        await pause(w)
    await w.get(leases[0].release())
