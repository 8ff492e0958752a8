"""Ticks: run by one of all processes, never twice, and never while the run before still goes on."""

import asyncio
import threading
from datetime import timedelta

import pytest

from dibs import LeaseLost, TaskLock, current_lease
from dibs.model import Acquire
from dibs.tasks import TaskFailure, Tasks
from tests.tasks.conftest import Cluster, Job, Skewed, counts, eventually, status, turn


async def test_each_tick_is_run_once_in_the_cluster(place: Cluster) -> None:
    job = Job(place)
    three = [job.on(place.tasks(), where) for where in "abc"]
    async with three[0], three[1], three[2]:
        await place.advance(300)
    assert job.seconds == [60, 120, 180, 240, 300]
    assert sum(counts(tasks)[0] for tasks in three) == 5
    assert sum(counts(tasks)[1] for tasks in three) == 10
    assert job.tokens == sorted(set(job.tokens))


async def test_a_tick_runs_once_though_clocks_differ_by_less_than_its_grace(place: Cluster) -> None:
    job = Job(place)
    ahead = job.on(place.tasks(late=-25), "ahead", grace="60s")
    right = job.on(place.tasks(), "right", grace="60s")
    behind = job.on(place.tasks(late=30), "behind", grace="60s")
    await place.advance(31)  # all are within the same minute
    async with ahead, right, behind:
        await place.advance(600)
    assert job.ran == [("ahead", 35.0 + 60 * k) for k in range(10)]


async def test_a_loser_of_a_tick_makes_one_round_trip_and_a_winner_four(place: Cluster) -> None:
    job = Job(place)
    (one, first), (two, second) = place.tapped(), place.tapped()
    async with job.on(first, "a"), job.on(second, "b"):
        await place.advance(59)
        one.batches.clear()
        two.batches.clear()
        await place.advance(1)
    sent = [[each for batch in store.batches for each in batch] for store in (one, two)]
    lost, won = sorted(sent, key=len)
    assert [type(command) for command in lost] == [Acquire]
    assert len(won) == 4


async def test_while_a_run_goes_on_the_next_tick_is_skipped_everywhere(place: Cluster) -> None:
    job = Job(place)
    here, there = job.on(place.tasks(), "here"), job.on(place.tasks(), "there")
    job.may_end.clear()
    async with here, there:
        await place.advance(185)
        assert job.seconds == [60]
        assert counts(here)[2] + counts(there)[2] == 2
        assert status(here).running or status(there).running
        job.may_end.set()
        await turn()
        await place.advance(60)
    assert job.seconds == [60, 240]


async def test_jitter_moves_a_start_but_never_past_the_next_tick(
    place: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.tasks.session.uniform", lambda low, high: high)
    job, late = Job(place), Job(place)
    tasks = job.on(place.tasks(timezone="Europe/Berlin"), jitter="20s")

    @tasks.cron("* * * * *", jitter="5m", name="late")
    async def run() -> None:
        late.ran.append(("", place.second))

    async with tasks:
        await turn()
        assert str(status(tasks).next_run) == "2027-01-15 08:01:00+00:00"
        await place.advance(200, step=1)
    assert job.seconds == [80, 140, 200]
    assert late.seconds == [114, 174]


async def test_jitter_longer_than_the_grace_runs_no_tick_twice(
    place: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process draws no delay and another the longest: who is later finds the tick still claimed."""
    job, drawn = Job(place), iter([0.0, 1.0] * 10)
    monkeypatch.setattr("dibs.tasks.session.uniform", lambda low, high: high * next(drawn))
    two = [place.tasks(), place.tasks()]
    for tasks in two:

        async def run() -> None:
            job.ran.append(("", place.second))

        tasks.cron("0 * * * *", name="job", jitter="30m", grace="1m")(run)
    async with two[0], two[1]:
        await place.advance(7200, step=10)
    assert job.seconds == [3600, 7200]
    assert sorted(counts(tasks)[1] for tasks in two) == [0, 1]


async def test_a_winner_that_was_paused_past_the_claims_of_others_runs_nothing(
    place: Cluster,
) -> None:
    """It decided to try in time, and its command arrived when the tick's lock had run out long ago."""
    job = Job(place)
    store, tasks = place.tapped()
    async with job.on(tasks, every="1h", grace="1m"):
        await place.advance(3599, step=100)

        def pause(_: object) -> None:
            store.before = lambda _: None
            place.clock.advance(121)

        store.before = pause
        await place.advance(1)
        assert (await place.client()[1].task_lock("job", 0, 60).status()).last_token == 0
        assert counts(tasks) == (0, 0, 0, 1)
    assert job.ran == []


async def test_everywhere_takes_no_lock_and_has_no_past_at_its_start(place: Cluster) -> None:
    """Nobody remembers what was run in a process, so each start would run the latest again."""
    job = Job(place)
    here, there = (
        job.on(place.tasks(), where, everywhere=True, missed="latest")
        for where in ("here", "there")
    )
    async with here, there:
        await turn()
        assert job.ran == []
        await place.advance(60)
        assert sorted(job.ran) == [("here", 60), ("there", 60)]
        place.clock.advance(90)  # and nothing runs meanwhile
        await turn()
        assert sorted(job.ran[2:]) == [("here", 150), ("there", 150)]
        job.may_end.clear()
        await place.advance(90)
        assert counts(here)[2] == 1, "skipped, as the run before goes on"
        job.may_end.set()


async def test_a_clock_that_is_set_back_for_good_does_not_stop_it(
    place: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    job, clock = Job(place), Skewed(place.clock, -86_400)
    tasks = job.on(Tasks(client=place.client()[1], clock=clock))
    async with tasks:
        await place.advance(120)
        clock._late = 0
        await place.advance(120)
    assert job.seconds == [60, 120, 180, 240]
    assert "the clock was set back" in caplog.text


async def test_a_plain_function_runs_in_a_thread_and_holds_its_lock_to_its_end(
    place: Cluster,
) -> None:
    tasks, other = place.tasks(), place.client()[1]
    may_end, seen = threading.Event(), []

    @tasks.every("60s", name="job")
    def job() -> None:
        seen.append((threading.current_thread().name, current_lease().token))
        assert may_end.wait(20)

    async with tasks:
        await place.advance(60)
        await eventually(lambda: status(tasks).running)
        holder = (await TaskLock("job", 0, 60, client=other).status()).holders[0]
        assert holder.note == "the tick of 2027-01-15T08:01:00Z"
        may_end.set()
        await eventually(lambda: status(tasks).last_outcome == "done")
        assert not await TaskLock("job", 0, 60, client=other).locked()
    assert seen == [("dibs-job", holder.token)]


async def test_an_error_leaves_the_others_alone_and_is_reported(
    place: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[TaskFailure] = []

    async def on_error(failure: TaskFailure) -> None:
        told.append(failure)
        if isinstance(failure.error, SystemExit):
            raise LookupError("in on_error")

    async def cancels() -> None:
        raise asyncio.CancelledError("from somewhere in it")

    async def contends() -> None:
        await place.client()[1].lock("resource").acquire(wait=0)

    async def loses() -> None:
        raise LeaseLost("another", key=b"lock:another")

    def exits() -> None:
        raise SystemExit(3)

    wrong = {
        "cancels {itself}": (cancels, "CancelledError: from somewhere in it"),
        "contends": (contends, "AcquireTimeout: resource is held"),
        "loses": (loses, "LeaseLost: another"),
        "exits": (exits, "SystemExit: 3"),
        "returns a coroutine": (lambda: cancels(), "make it an `async def`"),  # noqa: PLW0108
    }
    tasks, fine = place.tasks(on_error=on_error), Job(place)
    for name, (function, _) in wrong.items():
        tasks.every("60s", name=name)(function)
    async with place.client()[1].lock("resource"), fine.on(tasks):
        for failed in (1, 2):
            await place.advance(60)
            await eventually(lambda n=failed: all(status(tasks, x).failed == n for x in wrong))  # type: ignore[misc]
        for name, (_, error) in wrong.items():
            assert status(tasks, name).last_outcome == "failed"
            assert error in str(status(tasks, name).last_error)
        assert tasks.healthy(), "a task that fails is no reason to restart the process"
        await eventually(lambda: len(told) == 2 * len(wrong))
    assert fine.seconds == [60, 120]
    assert {(failure.task, failure.outcome) for failure in told} == {
        (name, "failed") for name in wrong
    }
    ticks = [failure.tick for failure in told if failure.task == "contends" and failure.tick]
    assert ticks[1] - ticks[0] == timedelta(seconds=60)
    assert "task contends failed" in caplog.text
    assert "on_error failed for task exits" in caplog.text


@pytest.mark.parametrize("cancel", [True, False])
async def test_an_overrun_of_max_hold_is_logged_and_cancelled_if_asked_for(
    place: Cluster, caplog: pytest.LogCaptureFixture, cancel: bool
) -> None:
    job = Job(place)
    job.may_end.clear()
    tasks = job.on(place.tasks(), max_hold="90s", cancel=cancel)
    async with tasks:
        await place.advance(151)
        assert status(tasks).running is not cancel
        job.may_end.set()
        await turn()
        assert (status(tasks).last_outcome, status(tasks).failed) == ("lost", 0)
        await place.advance(30)
    assert job.seconds == [60, 180]
    assert ("task job was stopped" if cancel else "longer than its max_hold") in caplog.text
