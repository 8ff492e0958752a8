"""Waiting in turn: who comes next, what waiters are told, and what a pushed grant is worth."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, Client, DibsError, Lock, Waiting
from dibs.locks.waiting import WaitEstimator
from dibs.model import Acquire, Command, Inspect, Queued, Refused, Renew, Reply
from dibs.session import StoreSession
from dibs.testing import ManualClock
from tests.changed_store import ChangedStore
from tests.locks.waits import Beside, Holder, pause, time_passes, until, until_queued
from tests.locks.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


async def queued(client: Client, name: str, count: int) -> None:
    """Wait until so many are in the queue."""
    while (await client.status(name)).waiting < count:
        await asyncio.sleep(0)


async def test_a_time_out_names_the_holder_and_counts_who_is_ahead(
    client: Client, clock: ManualClock
) -> None:
    held = await client.lock("a", label="holder", ttl=300).acquire()
    clock.advance(41)
    first = [asyncio.create_task(client.lock("a", ttl=300).acquire()) for _ in range(2)]
    await queued(client, "a", 2)
    last = asyncio.create_task(client.lock("a", ttl=300).acquire(wait=7))
    await queued(client, "a", 3)
    clock.advance(7)
    with pytest.raises(AcquireTimeout, match=r"2 are ahead of you; gave up after 7 s") as caught:
        await last
    assert "/holder for 48 s" in str(caught.value)
    assert caught.value.position == 2
    assert (await client.status("a")).waiting == 2, "it has left the queue"
    await held.release()
    for task in first:
        await (await task).release()


async def test_wait_takes_durations_of_every_kind(client: Client, clock: ManualClock) -> None:
    held = await client.lock("a", ttl=3000).acquire()
    for wait in ("5s", 5, 5.0):
        task = asyncio.create_task(client.lock("a").acquire(wait=wait))
        await queued(client, "a", 1)
        clock.advance(4.9)
        await asyncio.sleep(0)
        assert not task.done()
        clock.advance(0.2)
        with pytest.raises(AcquireTimeout):
            await task
    for wrong in (True, -1, float("nan"), "soon", [5]):
        with pytest.raises((TypeError, ValueError)):
            await client.lock("a").acquire(wait=wrong)  # type: ignore[arg-type]
    await held.release()


async def test_a_waiter_whose_request_grew_too_large_is_refused(client: Client) -> None:
    held = await client.semaphore("s", 3).acquire()
    task = asyncio.create_task(client.semaphore("s", 3).acquire(units=3))
    while not (await client.status("s", "semaphore")).waiting:
        await asyncio.sleep(0)
    smaller = await client.semaphore("s", 2).acquire(wait=0)
    async with asyncio.timeout(10):
        with pytest.raises(DibsError, match="capacity"):
            await task
    await held.release()
    await smaller.release()


class Pushed:
    """A grant that came by a push, and every renewal of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = TappedStore(clock=self.clock)
        self.client: Any = Client(StoreSession(self.store, clock=self.clock))

    async def lease(self, ttl: float) -> Any:
        held = await self.client.lock("a").acquire()
        task = asyncio.create_task(self.client.lock("a", ttl=ttl).acquire())
        await queued(self.client, "a", 1)
        await held.release()
        lease = await task
        self.store.kept.clear()
        self.store.batches.clear()
        return lease

    def claims(self, lease: Any) -> int:
        batches = (*self.store.kept, *self.store.batches)
        return sum(isinstance(c, Renew) and c.id == lease._id for b in batches for c in b)


@pytest.mark.parametrize("ttl", [30, 3000])
async def test_a_pushed_grant_is_claimed_only_if_it_is_held_for_a_third_of_its_window(
    ttl: float,
) -> None:
    site = Pushed()
    short = await site.lease(ttl)
    assert 0 < short.remaining < 5
    site.clock.advance(1.4)
    await short.release()
    site.clock.advance(10)
    assert site.claims(short) == 0, "short holds never pay for it"
    long = await site.lease(ttl)
    site.clock.advance(2)
    assert site.claims(long) == 1
    assert long.remaining > 20
    await long.release()
    await site.client.close()


# -- on_wait ----------------------------------------------------------------------------------------


@in_both_worlds
async def test_on_wait_is_called_at_once_and_every_second(w: World) -> None:
    held = await w.get(w.client.lock("a", label="holder", note="report", ttl=60).acquire())
    general: list[Waiting] = []
    told: list[Waiting] = []
    lock = w.another().lock("a", on_wait=general.append)
    waiting = Holder(w, lock, on_wait=told.append)
    await until(w, lambda: len(told) == 1)
    first = told[0]
    assert first.key == b"lock:a"
    assert first.holders[0].owner.endswith("/holder")
    assert first.holders[0].note == "report"
    assert 59 < first.holders[0].expires_in <= 60
    assert (first.position, first.waiting, first.waited, first.estimate) == (0, 1, 0, None)
    for second in (1, 2, 3):
        w.clock.advance(1)
        await until(w, lambda second=second: len(told) == second + 1)  # type: ignore[misc]
        assert told[second].waited == pytest.approx(second)
        assert told[second].holders[0].held_for == pytest.approx(second)
    await w.get(held.release())
    await waiting.holds()
    await waiting.lets_go()
    assert len(told) == 4, "not called once it is granted"
    assert general == [], "the one given to acquire() replaces the constructor's"


@in_both_worlds
async def test_a_single_try_calls_no_on_wait(w: World) -> None:
    told: list[Waiting] = []
    held = await w.get(w.client.lock("a", on_wait=told.append).acquire())
    assert await w.get(w.another().lock("a", on_wait=told.append).try_acquire()) is None
    with pytest.raises(AcquireTimeout):
        await w.get(w.another().lock("a").acquire(wait=0, on_wait=told.append))
    await w.get(held.release())
    assert told == []


@in_both_worlds
async def test_every_primitive_that_queues_has_it(w: World) -> None:
    rwlock, semaphore = w.client.rwlock("r"), w.client.semaphore("s", 2)
    told: list[Waiting] = []
    other = w.another()
    held = [await w.get(rwlock.read().acquire()), await w.get(semaphore.acquire(units=2))]
    waiting = [
        Holder(w, other.rwlock("r", on_wait=told.append).write()),
        Holder(w, other.semaphore("s", 2, on_wait=told.append)),
        Holder(w, other.rwlock("r", on_wait=told.append).read()),
    ]
    await until(w, lambda: len(told) == 3)
    assert sorted(report.key for report in told) == [b"rwlock:r", b"rwlock:r", b"semaphore:s"]
    for lease in held:
        await w.get(lease.release())
    for each in sorted(waiting, key=lambda each: each.lease is None):
        await each.lets_go()


@in_both_worlds
async def test_an_error_in_on_wait_is_logged_and_ends_no_wait(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "dibs")
    calls = 0

    def fail(waiting: Waiting) -> None:
        nonlocal calls
        calls += 1
        raise LookupError("mine")

    held = await w.get(w.client.lock("a").acquire())
    waiting = Holder(w, w.another().lock("a"), on_wait=fail)
    await until(w, lambda: calls == 1)
    await time_passes(w, lambda: calls == 2)
    await w.get(held.release())
    await waiting.holds()
    await waiting.lets_go()
    assert "LookupError: mine" in caplog.text


@in_both_worlds
async def test_a_waiter_sees_its_place_move_and_an_estimate(w: World) -> None:
    """Each of those ahead holds for ten seconds; after the first of them the pace is known."""
    told: list[Waiting] = []

    async def hold_for_long() -> None:
        lease = await w.get(w.another().lock("a", ttl=600).acquire())
        end = w.clock.now() + 10
        await until(w, lambda: w.clock.now() >= end)
        await w.get(lease.release())

    ahead = [Beside(w, hold_for_long)]
    await until(w, lambda: w.get(w.client.lock("a").locked()))
    for number in (1, 2):
        ahead.append(Beside(w, hold_for_long))
        await until_queued(w, "a", number)
    last = Holder(w, w.another().lock("a", ttl=600), on_wait=told.append)
    await until(w, lambda: bool(told))
    assert (told[0].position, told[0].estimate) == (2, None)
    await time_passes(w, lambda: told[-1].position == 1)
    turn = told[-1].waited
    assert told[-1].estimate == pytest.approx(2 * turn, rel=0.25), "two more turns of that length"
    await time_passes(w, lambda: last.settled)
    await last.lets_go()
    for each in ahead:
        await each.result()
    places = [report.position or 0 for report in told]
    assert places == sorted(places, reverse=True)


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ([(0, 3)], None),  # nothing has moved yet
        ([(0, 0), (100, 0)], None),  # the first in the queue has seen nobody leave
        ([(0, 3), (10, 2)], 30),  # two ahead, and the holder
        ([(0, 3), (10, 2), (15, 2)], 25),
        ([(0, 3), (10, 2), (90, 2)], 0),  # longer than thought: it may be any moment
        ([(0, 4), (10, 2)], 15),
        ([(0, 3), (10, 5)], None),  # those with a higher priority have come in
        ([(0, None), (5, None)], None),
    ],
)
def test_an_estimate_is_no_more_than_what_was_seen(
    seen: list[tuple[float, int | None]], left: float | None
) -> None:
    pace = WaitEstimator(0)
    for now, position in seen:
        pace.saw(position, now)
    assert pace.left(seen[-1][0]) == (left if left is None else pytest.approx(left))


async def test_a_coroutine_function_is_awaited_in_the_waiters_own_task() -> None:
    w = World("async")
    held = await w.client.lock("a").acquire()
    told: list[tuple[Any, Waiting]] = []

    async def tell(waiting: Waiting) -> None:
        await asyncio.sleep(0)
        told.append((asyncio.current_task(), waiting))

    task = asyncio.create_task(w.client.lock("a").acquire(on_wait=tell))
    await until(w, lambda: bool(told))
    assert told[0][0] is task
    await held.release()
    await (await task).release()


async def test_a_grant_that_comes_during_on_wait_is_not_missed() -> None:
    w = World("async")
    held = await w.client.lock("a").acquire()

    async def tell(waiting: Waiting) -> None:
        await held.release()
        await asyncio.sleep(0.01)

    async with asyncio.timeout(20), w.another().lock("a").acquire(on_wait=tell) as lease:
        assert not lease.lost


async def no_coroutine(waiting: Waiting) -> None: ...


@pytest.mark.parametrize("bad", [3, "x", no_coroutine])
def test_on_wait_must_be_a_function_that_takes_a_waiting(bad: Any) -> None:
    with pytest.raises(TypeError, match="on_wait is "):
        dibs.sync.Lock("a", on_wait=bad)
    with pytest.raises(TypeError, match="on_wait is "):
        dibs.sync.connect("memory://on-wait").rwlock("a").read().acquire(on_wait=bad)
    if bad is not no_coroutine:
        with pytest.raises(TypeError, match=r"on_wait is .*: give a function that takes a Waiting"):
            Lock("a", on_wait=bad)


# -- a store whose queues are full ------------------------------------------------------------------


class FullStore(ChangedStore):
    """A store whose queues are full."""

    def __init__(self, w: World) -> None:
        super().__init__(w.store)
        self.full = True
        self.recheck_in = 1.0
        self.refused = 0

    def replies(self, replies: Sequence[Reply], commands: Sequence[Command]) -> Sequence[Reply]:
        if not self.full:
            return replies
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(command, Acquire) and isinstance(reply, Queued):
                behind = self.inner.blocking_connection()
                behind.apply([dibs.model.Release(command.key, command.id)], 10)
                self.refused += 1
        return [
            Refused("queue_full", (), self.recheck_in) if isinstance(reply, Queued) else reply
            for reply in replies
        ]


async def test_a_waiter_that_gets_a_place_later_goes_on_with_its_wait() -> None:
    """It is told as often as others, and has waited since it began to."""
    w = World("async")
    held = await w.client.lock("a", ttl=600).acquire()
    store = FullStore(w)
    store.recheck_in = 0.5
    told: list[Waiting] = []
    task = asyncio.create_task(w.another(store).lock("a", ttl=600).acquire(on_wait=told.append))
    await until(w, lambda: len(told) == 1)
    assert (told[0].position, told[0].waiting) == (None, 0)
    store.full = False
    w.clock.advance(0.6)  # it is sooner let in than told again
    await until_queued(w, "a", 1)
    for _ in range(20):
        await pause(w)
    assert [waiting.waited for waiting in told] == [0]
    w.clock.advance(0.4)
    await until(w, lambda: len(told) == 2)
    assert told[1].waited == pytest.approx(1)
    assert told[1].position == 0
    await held.release()
    await (await task).release()


async def test_without_on_wait_nothing_is_asked() -> None:
    w = World("async")
    store = TappedStore(store=w.store)
    held = await w.another().lock("a", ttl=600).acquire()
    task = asyncio.create_task(w.another(store).lock("a", ttl=600).acquire())
    await until(w, lambda: bool(store.batches))
    for _ in range(60):
        w.clock.advance(0.1)
        await pause(w)
    assert not any(isinstance(each, Inspect) for batch in store.batches for each in batch)
    await held.release()
    await (await task).release()
