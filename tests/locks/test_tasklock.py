"""Task locks: one start at a time, none too soon after the one before, and none kept out for too long."""

import logging
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, TaskLockConfig, UnsafeTiming
from dibs.model import Release
from tests.locks.waits import until
from tests.locks.worlds import World, in_both_worlds, is_free, outage, site


def lock_of(w: World, **options: Any) -> Any:
    return w.client.task_lock("nightly", 10, 60, **options)


@in_both_worlds
async def test_an_overrun_cancels_nobody_and_is_logged_at_its_end(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    lock = lock_of(w)
    lease = await w.enter(lock)
    w.clock.advance(63)
    await w.turn()
    assert lease.lost
    assert not await w.leave(lock)
    (told,) = [record for record in caplog.records if "longer than" in record.getMessage()]
    assert "held for 63 s, 3 s longer than its max_hold of 60 s" in told.getMessage()
    assert told.levelno == logging.WARNING


@in_both_worlds
async def test_with_min_hold_as_long_as_max_hold_it_is_once_in_that_time(w: World) -> None:
    """Also where the body ends within the margin, when the lease can't be relied on any more."""
    lock = w.client.task_lock("daily", 60, 60)
    await w.enter(lock)
    w.clock.advance(57)
    await w.leave(lock)
    assert w.client.session.keeper.flush(5)
    w.clock.advance(2.9)
    await w.turn()
    assert await w.get(lock.try_acquire()) is None
    w.clock.advance(0.2)
    assert await is_free(w, lock)


@in_both_worlds
async def test_a_release_during_an_outage_keeps_it_closed_for_no_longer(w: World) -> None:
    store, client = site(w)
    lock = client.task_lock("nightly", 10, 60)
    lease = await w.get(lock.acquire())
    w.clock.advance(2)
    with outage(store):
        await w.get(lease.release())
        w.clock.advance(4)
        await w.turn()
    sent: list[Release] = []
    store.before = lambda commands: sent.extend(c for c in commands if isinstance(c, Release))
    pauses = iter(range(25))  # 2.5 s: the keeper tries again within one, however busy the machine

    def landed() -> bool:
        if not sent and next(pauses, None) is not None:
            w.clock.advance(0.1)
        return bool(sent)

    await until(w, landed)
    assert 0 < sent[0].retain <= 4, "the rest of min_hold, at the time of the try that got through"
    looks = w.another().task_lock("nightly", 10, 60)
    status = await w.get(looks.status())
    while status.holders and status.holders[0].state != "retained":
        status = await w.get(looks.status())
    w.clock.advance(4.1)
    assert await is_free(w, looks)


@in_both_worlds
async def test_a_forgotten_one_stays_closed_as_well(w: World) -> None:
    lease = await w.get(lock_of(w).acquire())
    with pytest.raises(TypeError, match="never renewed: it ends after max_hold"):
        await w.get(lease.renew())
    with pytest.raises(TypeError, match="never detached"):
        lease.detach()
    with pytest.warns(ResourceWarning, match="dropped without release"):
        del lease
    looks = w.another().task_lock("nightly", 10, 60)

    async def kept() -> bool:
        holders = (await w.get(looks.status())).holders
        return [holder.state for holder in holders] == ["retained"]

    await until(w, kept)
    w.clock.advance(10)
    assert await is_free(w, looks)


def test_timings_that_make_no_sense_are_refused() -> None:
    for wrong in ((2, 1), (0, 0), (0, float("inf")), ("1h", "59m")):
        with pytest.raises(UnsafeTiming, match="max_hold"):
            dibs.TaskLock("a", *wrong)
    with pytest.raises(ValueError, match="negative"):
        dibs.TaskLock("a", -1, 1)
    lock = dibs.TaskLock.from_config("a", TaskLockConfig(min_hold="1m", max_hold="1h"))
    assert (lock.min_hold, lock.max_hold) == (60, 3600)


def test_a_decorated_function_that_may_not_start_is_skipped_or_refused() -> None:
    w = World("sync")
    options = {"min_hold": 10, "max_hold": 60, "client": w.client}

    def report(day: str) -> str:
        return str(dibs.current_lease().key.decode())

    wraps: Any = dibs.sync.TaskLock.wraps
    skips = wraps("report:{day}", on_busy="skip", default="skipped", **options)(report)
    raises = wraps("report:{day}", **options)(report)
    mon, tue = "tasklock:report:mon", "tasklock:report:tue"
    assert [skips("mon"), skips("mon"), skips("tue")] == [mon, "skipped", tue]
    with pytest.raises(AcquireTimeout, match="retained"):
        raises("mon")
    w.clock.advance(10)
    assert raises("mon") == mon
    with pytest.raises(ValueError, match="on_busy"):
        wraps("a", min_hold=0, max_hold=1, on_busy="wait")
    w.client.close()


@in_both_worlds
async def test_a_slow_answer_takes_nothing_off_min_hold(w: World) -> None:
    """Also where the process dies, and so releases nothing."""
    store, client = site(w)
    store.after = lambda _: w.clock.advance(9)
    lease = await w.hold(client.task_lock("daily", 60, 60))
    store.after = lambda _: None
    assert lease.remaining <= 51, "max_hold counts from the question"
    client.session.keeper.unwatch(lease)
    w.clock.advance(59)
    looks = w.another().task_lock("daily", 60, 60)
    assert await w.get(looks.try_acquire()) is None
    w.clock.advance(5)
    assert await is_free(w, looks)
