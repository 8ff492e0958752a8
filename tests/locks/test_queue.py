"""Waiting in turn: who comes next, what waiters are told, and what a pushed grant is worth."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, BackendUnavailable, Waiting
from dibs.model import Acquire, Command, Notification, Refused, Reply
from tests.changed_store import ChangedStore
from tests.locks.waits import Beside, Holder, pause, time_passes, until, until_queued
from tests.locks.worlds import World, in_both_worlds, site


@in_both_worlds
async def test_on_wait_is_called_at_once_and_every_second_and_its_error_ends_no_wait(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    held = await w.get(w.client.lock("a", label="holder", note="report", ttl=60).acquire())
    general: list[Waiting] = []
    told: list[Waiting] = []

    def tell(waiting: Waiting) -> None:
        told.append(waiting)
        if waiting.waited > 2:  # the clock moves no more: logging may take its time
            raise LookupError("mine")

    waiting = Holder(w, w.another().lock("a", on_wait=general.append), on_wait=tell)
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
    with pytest.raises(AcquireTimeout):
        await w.get(w.client.lock("a").acquire(wait=0, on_wait=tell))
    await waiting.lets_go()
    assert len(told) == 4, "not called once it is granted, nor by a single try"
    assert general == [], "the one given to acquire() replaces the constructor's"
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


async def test_a_coroutine_function_is_awaited_and_a_grant_meanwhile_not_missed(w: World) -> None:
    held = await w.client.lock("a").acquire()
    told_in: list[Any] = []

    async def tell(waiting: Waiting) -> None:
        told_in.append(asyncio.current_task())
        await held.release()
        await asyncio.sleep(0.01)

    async with asyncio.timeout(20), w.another().lock("a").acquire(on_wait=tell) as lease:
        assert not lease.lost
    assert told_in == [asyncio.current_task()]
    for wrong in (tell, 3):
        with pytest.raises(TypeError, match="on_wait is "):
            dibs.sync.Lock("a", on_wait=wrong)  # type: ignore[arg-type]


class FullStore(ChangedStore):
    full, refused, recheck_in = True, 0, 1.0

    def commands(self, commands: Sequence[Command]) -> Sequence[Command]:
        return [
            replace(command, queue=False) if self.full and isinstance(command, Acquire) else command
            for command in commands
        ]

    def replies(self, replies: Sequence[Reply], commands: Sequence[Command]) -> Sequence[Reply]:
        if not self.full:
            return replies
        full = Refused("queue_full", (), self.recheck_in)
        self.refused += sum(isinstance(reply, Refused) for reply in replies)
        return [full if isinstance(reply, Refused) else reply for reply in replies]


async def test_a_waiter_that_gets_a_place_later_goes_on_with_its_wait(w: World) -> None:
    """It is told as often as others, and has waited since it began to."""
    held = await w.client.lock("a", ttl=600).acquire()
    store = FullStore(w.store)
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


@in_both_worlds
async def test_a_grant_that_was_lost_with_the_connection_is_asked_for_at_once(w: World) -> None:
    """The clock stands still, so nothing else would make the waiter ask."""
    store, client = site(w)
    lost: list[Notification] = []

    def lose_the_first(news: Sequence[Notification]) -> None:
        if news and not lost:
            lost.extend(news)
            raise BackendUnavailable("the connection broke")

    store.arriving = lose_the_first
    assert client.session.keeper.flush(10), "it listens from now on"
    held = await w.get(w.client.lock("a").acquire())
    waiting = Holder(w, client.lock("a"))
    await until_queued(w, "a")
    await w.get(held.release())
    await waiting.holds()
    await waiting.lets_go()
    assert lost
