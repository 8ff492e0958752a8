"""Ticks: run by one of all processes, never twice, and never while the run before still goes on.

While the store is away they are tried again for as long as their grace lasts.
"""

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from dibs import LeaseLost, MissingCapability, NotConfigured, TaskLock, current_lease
from dibs.model import Acquire, Command
from dibs.tasks import TaskFailure, Tasks
from tests.locks.worlds import away, heal
from tests.tasks.conftest import Cluster, Job, Skewed, counts, eventually, status, turn


async def test_each_tick_is_run_once_in_the_cluster(place: Cluster, job: Job) -> None:
    three = [job.on(place.tasks(), where) for where in "abc"]
    async with three[0], three[1], three[2]:
        await place.advance(300)
    assert job.seconds == [60, 120, 180, 240, 300]
    assert sum(counts(tasks)[0] for tasks in three) == 5
    assert sum(counts(tasks)[1] for tasks in three) == 10
    assert job.tokens == sorted(set(job.tokens))


async def test_a_tick_runs_once_though_clocks_differ_by_less_than_its_grace(
    place: Cluster, job: Job
) -> None:
    ahead = job.on(place.tasks(late=-25), "ahead", grace="60s")
    right = job.on(place.tasks(), "right", grace="60s")
    behind = job.on(place.tasks(late=30), "behind", grace="60s")
    await place.advance(31)  # all are within the same minute
    async with ahead, right, behind:
        await place.advance(600)
    assert job.ran == [("ahead", 35.0 + 60 * k) for k in range(10)]


async def test_a_loser_of_a_tick_makes_one_round_trip_and_a_winner_four(
    place: Cluster, job: Job
) -> None:
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


async def test_while_a_run_goes_on_the_next_tick_is_skipped_everywhere(
    place: Cluster, job: Job
) -> None:
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
    job: Job,
) -> None:
    """It decided to try in time, and its command arrived when the tick's lock had run out long ago."""
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


async def test_everywhere_takes_no_lock_and_has_no_past_at_its_start(
    place: Cluster, job: Job
) -> None:
    """Nobody remembers what was run in a process, so each start would run the latest again."""
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
    place: Cluster, job: Job, caplog: pytest.LogCaptureFixture, cancel: bool
) -> None:
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


# ---- a store that is away, and ticks that nobody ran -----------------------------------------------


async def test_a_tick_is_tried_again_while_its_grace_lasts(
    place: Cluster, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    store, tasks = place.tapped()
    job.on(tasks, every="1h", grace="5m")
    local = []

    @tasks.every("60s", name="local", everywhere=True)
    async def of_each() -> None:
        local.append(place.second)

    async with tasks:
        await place.advance(3590)
        store.before = away
        await place.advance(140, step=0.25)
        assert job.ran == []
        assert "BackendUnavailable: the store is away" in str(status(tasks).trouble)
        assert not tasks.healthy()
        assert local[-2:] == [3660, 3720]
        heal(store)
        await place.advance(30, step=0.25)
        assert len(job.ran) == 1
        assert 3730 < job.seconds[0] < 3750
        assert tasks.healthy()
        assert status(tasks).trouble is None
    told = [r.message for r in caplog.records if "is tried again" in r.message]
    assert 3 <= len(told) <= 6, "once every half minute"


async def test_it_is_given_up_when_its_grace_is_over(place: Cluster, job: Job) -> None:
    store, tasks = place.tapped()
    job.on(tasks, every="1h", grace="1m")
    async with tasks:
        await place.advance(3590)
        store.before = away
        await place.advance(120, step=0.25)
        heal(store)
        await place.advance(20, step=0.25)
        assert (job.ran, counts(tasks)) == ([], (0, 0, 0, 1))
        await place.advance(3600)
        assert job.seconds == [7200]
        assert tasks.healthy()


async def test_a_try_whose_answer_was_lost_does_not_cost_the_tick(place: Cluster, job: Job) -> None:
    """It won, and doesn't know: its own lock is in its way until the background has given it up."""
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
        await place.advance(3, step=0.25)
        store.after = lambda _: None
        await place.advance(3, step=0.25)
        assert "is being given up" in str(status(tasks).trouble)
        heal(store)
        await place.advance(48, step=0.25)
    assert len(job.ran) == 1
    assert counts(tasks)[:3] == (1, 0, 0)


async def test_a_stop_does_not_wait_for_a_store_that_is_away(place: Cluster) -> None:
    store, tasks = place.tapped(shutdown_timeout="1h")
    await Job(place).on(tasks).start()
    await place.advance(59)
    store.before = away
    await place.advance(3, step=0.25)
    assert status(tasks).trouble
    await asyncio.wait_for(tasks.stop(), 30)
    heal(store)


async def test_an_older_tick_makes_room_for_the_next(place: Cluster, job: Job) -> None:
    store, tasks = place.tapped()
    job.on(tasks, grace="10m")
    async with tasks:
        await place.advance(59)
        store.before = away
        await place.advance(100, step=0.25)
        heal(store)
        await place.advance(15, step=0.25)
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
