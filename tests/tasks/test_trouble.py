"""A store that is away: a tick is tried again while its grace lasts, and other tasks go on."""

import asyncio
from collections.abc import Sequence

import pytest

from dibs import BackendUnavailable, MissingCapability, NotConfigured
from dibs.model import Acquire, Command
from dibs.tasks import Tasks
from tests.runtime.stores import TappedStore
from tests.tasks.places import Cluster, eventually, turn
from tests.tasks.test_ticks import Job, counts, status


def away(_: Sequence[Command]) -> None:
    raise BackendUnavailable("the store is away")


def at(place: Cluster) -> tuple[TappedStore, Tasks]:
    """A scheduler, and its store, which can be made to fail."""
    store, client = place.client()
    return store, Tasks(client=client, clock=place.clock)


async def advance(place: Cluster, seconds: float) -> None:
    """Let time pass also for what retries in the background."""
    for _ in range(round(seconds * 4)):
        await place.advance(0.25)


async def test_a_tick_is_tried_again_while_its_grace_lasts(
    place: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(place)
    store, tasks = at(place)
    job.on(tasks, every="1h", grace="5m")
    local = []

    @tasks.every("60s", name="local", everywhere=True)
    async def of_each() -> None:
        local.append(place.second)

    async with tasks:
        await place.advance(3590, step=10)
        store.before = away
        await advance(place, 140)
        assert job.ran == []
        assert "BackendUnavailable: the store is away" in str(status(tasks).trouble)
        assert not tasks.healthy()
        assert local[-2:] == [3660, 3720]
        store.before = lambda _: None
        await advance(place, 30)
        assert len(job.ran) == 1
        assert 3730 < job.seconds[0] < 3750
        assert tasks.healthy()
        assert status(tasks).trouble is None
    told = [r.message for r in caplog.records if "is tried again" in r.message]
    assert 3 <= len(told) <= 6, "once every half minute"


async def test_it_is_given_up_when_its_grace_is_over(place: Cluster) -> None:
    job = Job(place)
    store, tasks = at(place)
    job.on(tasks, every="1h", grace="1m")
    async with tasks:
        await place.advance(3590, step=10)
        store.before = away
        await advance(place, 120)
        store.before = lambda _: None
        await advance(place, 20)
        assert job.ran == []
        assert counts(tasks) == (0, 0, 0, 1)
        await place.advance(3600, step=10)
        assert job.seconds == [7200]
        assert tasks.healthy()


async def test_a_try_whose_answer_was_lost_does_not_cost_the_tick(place: Cluster) -> None:
    """It won, and doesn't know: its own lock is in its way until the background has given it up."""
    job = Job(place)
    store, tasks = at(place)
    job.on(tasks)
    async with tasks:
        await place.advance(59)
        lost = []

        def lose(batch: Sequence[Command]) -> None:
            if any(isinstance(command, Acquire) for command in batch):
                lost.append(batch)
                away(batch)

        store.after = lose
        await advance(place, 3)
        assert lost
        store.after = lambda _: None
        await advance(place, 50)
    assert len(job.ran) == 1
    assert counts(tasks)[:3] == (1, 0, 0)


async def test_a_stop_does_not_wait_for_a_store_that_is_away(place: Cluster) -> None:
    store, client = place.client()
    tasks = Job(place).on(Tasks(client=client, clock=place.clock, shutdown_timeout="1h"))
    await tasks.start()
    await place.advance(59)
    store.before = away
    await advance(place, 3)
    assert status(tasks).trouble
    await asyncio.wait_for(tasks.stop(), 30)
    store.before = lambda _: None


async def test_an_older_tick_makes_room_for_the_next(place: Cluster) -> None:
    job = Job(place)
    store, tasks = at(place)
    job.on(tasks, grace="10m")
    async with tasks:
        await place.advance(59)
        store.before = away
        await advance(place, 100)
        store.before = lambda _: None
        await advance(place, 15)
        assert len(job.ran) == 1
        assert status(tasks).last_tick is not None
        assert str(status(tasks).last_tick) == "2027-01-15 08:02:00+00:00"
        assert counts(tasks) == (1, 0, 0, 1)


async def test_where_there_is_no_store_it_does_not_start(
    place: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIBS_URL", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    tasks = Job(place).on(Tasks())
    with pytest.raises(NotConfigured):
        await tasks.start()
    assert not tasks.running


async def test_a_store_that_will_not_do_is_refused_at_the_start(place: Cluster) -> None:
    tasks = Job(place).on(place.tasks(require={"cluster"}))
    with pytest.raises(MissingCapability):
        await tasks.start()
    assert not tasks.running
    with pytest.raises(ValueError, match="no store promises"):
        await Job(place).on(place.tasks(require="wings")).start()


async def test_a_plain_function_s_lock_may_be_away_too(place: Cluster) -> None:
    store, tasks = at(place)
    ran = []
    tasks.every("1h", name="job")(lambda: ran.append(place.second))
    async with tasks:
        await place.advance(3599, step=100)
        blocked: list[object] = []

        def no_run_lock(batch: Sequence[Command]) -> None:
            if any(c.key == b"tasklock:job" for c in batch) and len(blocked) < 3:
                blocked.append(batch)
                away(batch)

        store.before = no_run_lock

        async def more() -> None:
            await place.advance(0.5)
            await turn()

        for _ in range(200):
            if ran:
                break
            await more()
        await eventually(lambda: status(tasks).last_outcome == "done")
        assert blocked
        assert counts(tasks) == (1, 0, 0, 0)
