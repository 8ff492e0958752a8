"""A store that is away, and ticks that nobody ran: tried again while their grace lasts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import MissingCapability, NotConfigured
from dibs.model import Acquire, Command
from dibs.tasks import Tasks
from tests.locks.worlds import away, heal
from tests.tasks.conftest import Cluster, Job, counts, status


async def advance(place: Cluster, seconds: float) -> None:
    """Let time pass also for what retries in the background."""
    for _ in range(round(seconds * 4)):
        await place.advance(0.25)


async def test_a_tick_is_tried_again_while_its_grace_lasts(
    place: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(place)
    store, tasks = place.tapped()
    job.on(tasks, every="1h", grace="5m")
    local = []

    @tasks.every("60s", name="local", everywhere=True)
    async def of_each() -> None:
        local.append(place.second)

    async with tasks:
        await place.advance(3590)
        store.before = away
        await advance(place, 140)
        assert job.ran == []
        assert "BackendUnavailable: the store is away" in str(status(tasks).trouble)
        assert not tasks.healthy()
        assert local[-2:] == [3660, 3720]
        heal(store)
        await advance(place, 30)
        assert len(job.ran) == 1
        assert 3730 < job.seconds[0] < 3750
        assert tasks.healthy()
        assert status(tasks).trouble is None
    told = [r.message for r in caplog.records if "is tried again" in r.message]
    assert 3 <= len(told) <= 6, "once every half minute"


async def test_it_is_given_up_when_its_grace_is_over(place: Cluster) -> None:
    job = Job(place)
    store, tasks = place.tapped()
    job.on(tasks, every="1h", grace="1m")
    async with tasks:
        await place.advance(3590)
        store.before = away
        await advance(place, 120)
        heal(store)
        await advance(place, 20)
        assert (job.ran, counts(tasks)) == ([], (0, 0, 0, 1))
        await place.advance(3600)
        assert job.seconds == [7200]
        assert tasks.healthy()


async def test_a_try_whose_answer_was_lost_does_not_cost_the_tick(place: Cluster) -> None:
    """It won, and doesn't know: its own lock is in its way until the background has given it up."""
    job = Job(place)
    store, tasks = place.tapped()
    job.on(tasks)
    async with tasks:
        await place.advance(59)

        def lose_answers(batch: Sequence[Command]) -> None:
            if any(isinstance(command, Acquire) for command in batch):
                away(batch)

        def keep_from_giving_up(batch: Sequence[Command]) -> None:
            if not all(isinstance(command, Acquire) for command in batch):
                away(batch)

        store.after, store.before = lose_answers, keep_from_giving_up
        await advance(place, 3)
        store.after = lambda _: None
        await advance(place, 3)
        assert "is being given up" in str(status(tasks).trouble)
        heal(store)
        await advance(place, 48)
    assert len(job.ran) == 1
    assert counts(tasks)[:3] == (1, 0, 0)


async def test_a_stop_does_not_wait_for_a_store_that_is_away(place: Cluster) -> None:
    store, tasks = place.tapped(shutdown_timeout="1h")
    await Job(place).on(tasks).start()
    await place.advance(59)
    store.before = away
    await advance(place, 3)
    assert status(tasks).trouble
    await asyncio.wait_for(tasks.stop(), 30)
    heal(store)


async def test_an_older_tick_makes_room_for_the_next(place: Cluster) -> None:
    job = Job(place)
    store, tasks = place.tapped()
    job.on(tasks, grace="10m")
    async with tasks:
        await place.advance(59)
        store.before = away
        await advance(place, 100)
        heal(store)
        await advance(place, 15)
        assert len(job.ran) == 1
        assert status(tasks).last_tick is not None
        assert str(status(tasks).last_tick) == "2027-01-15 08:02:00+00:00"
        assert counts(tasks) == (1, 0, 0, 1)


async def test_without_a_store_that_will_do_it_does_not_start(
    place: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIBS_URL", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for tasks, error in (
        (Tasks(), NotConfigured),
        (place.tasks(require={"cluster"}), MissingCapability),
        (place.tasks(require="wings"), ValueError),
    ):
        with pytest.raises(error):
            await Job(place).on(tasks).start()
        assert not tasks.running


@pytest.mark.parametrize(
    ("missed", "grace", "ran"),
    [
        ("skip", "150s", [360]),
        ("latest", "10s", [360]),  # the newest is too old already
        ("latest", "150s", [300, 360]),
        ("all", "150s", [180, 240, 300, 360]),
    ],
)
async def test_ticks_that_a_process_missed_before_its_start_or_in_a_pause(
    place: Cluster, missed: Any, grace: str, ran: list[float]
) -> None:
    paused, new = Job(place), Job(place)
    other = Cluster()
    other.clock = place.clock
    async with paused.on(place.tasks(), missed=missed, grace=grace) as tasks:
        await place.advance(60)
        paused.ticks.clear()
        place.clock.advance(255)  # and nothing runs meanwhile
        async with new.on(other.tasks(), missed=missed, grace=grace):
            await place.advance(45)
        assert paused.ticks == new.ticks == [("", tick) for tick in ran]
        assert counts(tasks)[3] == 5 - len(ran)
    await other.clients[0].close()
