"""Tasks of a leader, tasks that last, and how a scheduler starts and stops."""

import asyncio
import threading
from typing import Any

import pytest

from dibs import LeaderElection, TaskLock, override
from dibs.tasks import TaskFailure, TaskRouter, Tasks
from tests.tasks.conftest import Cluster, Job, counts, eventually, status, turn


def led(place: Cluster) -> tuple[Tasks, LeaderElection]:
    return place.tasks(), place.client()[1].leader_election("main")


async def leads(leader: LeaderElection) -> None:
    await eventually(leader.is_leader)
    await turn()


async def test_only_the_leader_runs_it_and_the_next_one_goes_on(place: Cluster, job: Job) -> None:
    (one, first), (two, second) = led(place), led(place)
    job.on(one, "one", leader=first)
    job.on(two, "two", leader=second)
    async with two:
        await leads(second)
        async with one:
            await place.advance(130)
            assert job.ran == [("two", 60), ("two", 120)]
            assert second.resign()
            await leads(first)
            await place.advance(60)
            assert job.ran[2:] == [("one", 180)]
        await leads(second)
        await place.advance(60)
    assert job.ran[3:] == [("two", 240)]
    assert not second.is_leader()


async def test_a_run_is_cancelled_when_the_term_ends(
    place: Cluster, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    tasks, leader = led(place)
    job.on(tasks, leader=leader).add(leader)
    job.may_end.clear()
    async with tasks:
        await place.advance(61)
        assert status(tasks).running
        assert status(tasks, "leader:main").running
        assert leader.resign()
        await eventually(lambda: not status(tasks).running)
        assert status(tasks).last_outcome == "lost"
        assert "resigned" in str(status(tasks).last_error)
        assert tasks.healthy()
    assert "task job was stopped" in caplog.text


@pytest.mark.parametrize(("missed", "won"), [("latest", 1), ("skip", 0)])
async def test_a_new_leader_makes_up_for_what_nobody_ran_if_told_to(
    place: Cluster, job: Job, missed: Any, won: int
) -> None:
    tasks, leader = led(place)
    async with place.client()[1].leader_election("main"):
        await job.on(tasks, leader=leader, missed=missed).start()
        await place.advance(63, step=3)
        assert job.ran == []
    await leads(leader)
    await place.advance(1)
    assert status(tasks).won == won
    await place.advance(56)
    assert counts(tasks) == (won + 1, 0, 0, 0)
    assert job.seconds[-1] == 120
    await tasks.stop()


async def test_a_campaign_of_one_s_own_is_left_alone(place: Cluster, job: Job) -> None:
    tasks, leader = led(place)
    async with leader.campaign() as campaign:
        await campaign.wait()
        async with job.on(tasks, leader=campaign):
            await place.advance(60)
        assert campaign.is_leader()
    assert job.seconds == [60]


async def test_a_task_of_a_leader_in_a_thread_ends_before_others_lead(place: Cluster) -> None:
    tasks, leader = led(place)
    may_end = threading.Event()
    tasks.every("60s", name="job", leader=leader)(lambda: may_end.wait(20))
    async with tasks:
        await leads(leader)
        async with place.client()[1].leader_election("main").campaign() as elsewhere:
            await place.advance(61)
            await eventually(lambda: status(tasks).running)
            leader.resign()
            await turn()
            assert status(tasks).running, "nothing interrupts a thread"
            assert not elsewhere.is_leader()
            may_end.set()
            await eventually(elsewhere.is_leader)
    assert status(tasks).last_outcome == "lost"


async def test_a_stop_waits_for_what_runs(place: Cluster, job: Job) -> None:
    tasks = job.on(place.tasks())
    job.may_end.clear()
    await tasks.stop()
    await tasks.start()
    with pytest.raises(RuntimeError, match="run already: start them once"):
        await tasks.start()
    await place.advance(60)
    stopping = asyncio.gather(tasks.stop(), tasks.stop())
    await place.advance(120)
    assert not stopping.done()
    assert not tasks.running
    assert not tasks.healthy()
    job.may_end.set()
    await stopping
    assert job.seconds == [60], "no new tick"
    assert status(tasks).last_outcome == "done"
    assert not await TaskLock("job", 0, 9, client=place.client()[1]).locked()


async def test_what_takes_too_long_is_cancelled_and_a_thread_keeps_its_lock(
    place: Cluster, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = job.on(place.tasks(shutdown_timeout=0.05), min_hold="30s")
    job.may_end.clear()
    may_end = threading.Event()
    tasks.every("60s", name="thread")(lambda: may_end.wait(20))
    async with tasks:
        await place.advance(60)
        await eventually(lambda: status(tasks, "thread").running)
    assert status(tasks).last_outcome == status(tasks, "thread").last_outcome == "cancelled"
    assert "task job, task thread did not end within 0.05 s, and is cancelled" in caplog.text
    client = place.client()[1]
    (retained,) = (await TaskLock("job", 30, 60, client=client).status()).holders
    assert retained.state == "retained", "min_hold stands"
    thread = TaskLock("thread", 0, 60, client=client)
    assert await thread.locked()
    may_end.set()
    while await thread.locked():
        await asyncio.sleep(0.005)


async def test_a_stop_that_is_cancelled_waits_no_longer(place: Cluster, job: Job) -> None:
    tasks = job.on(place.tasks(shutdown_timeout="1h"))
    job.may_end.clear()
    await tasks.start()
    await place.advance(60)
    stopping = asyncio.create_task(tasks.stop())
    await turn()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await eventually(lambda: status(tasks).last_outcome == "cancelled")


async def test_a_tick_that_is_being_claimed_is_run_to_its_end(place: Cluster) -> None:
    """A stop in between must not leave a tick that is claimed and was never run."""
    store, tasks = place.tapped()
    await Job(place).on(tasks).start()
    await place.advance(59)
    store.hold = asyncio.Event()
    store.turns = 1
    await place.advance(1)
    stopping = asyncio.create_task(tasks.stop())
    await turn()
    assert not stopping.done()
    store.hold.set()
    await stopping
    assert status(tasks).last_outcome == "done"


def test_it_can_be_started_again_in_another_loop() -> None:
    place, ran = Cluster(), []
    tasks = Tasks(client="reports", clock=place.clock)
    tasks.every("60s", name="job")(lambda: ran.append(1))

    async def main() -> None:
        before = len(ran)
        async with place.client()[1] as client:
            with override(client, name="reports"):
                async with tasks:
                    await place.advance(60)
                    await eventually(lambda: len(ran) > before)

    asyncio.run(main())
    asyncio.run(main())
    assert status(tasks).won == len(ran) == 2


async def test_tasks_may_be_added_while_it_runs_in_its_loop(place: Cluster) -> None:
    job, more, router = Job(place), Job(place), TaskRouter()
    more.on(router)
    async with place.tasks() as tasks:
        await place.advance(30)
        job.on(tasks)
        tasks.include_router(router, prefix="more")
        await place.advance(30)
        with pytest.raises(RuntimeError, match="add one in the event loop that runs them"):
            await asyncio.to_thread(tasks.every("60s", name="late"), print)
        assert list(tasks.status()) == ["job", "more/job"]
    assert job.seconds == more.seconds == [60]


async def test_lasting_tasks_are_cancelled_at_once_and_reported_if_they_fail(
    place: Cluster,
) -> None:
    told: list[TaskFailure] = []
    job, tasks = Job(place), place.tasks(shutdown_timeout="1h", on_error=told.append)
    ended = []

    async def poll() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("poll")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("gone")

    tasks.add(poll, name="poll")
    async with job.on(tasks):
        await turn()
        assert status(tasks, "poll").running
        assert status(tasks, "poll").schedule == "from start to stop"
        assert tasks.healthy()
        tasks.add(fails, name="fails")
        await place.advance(60)
        assert not tasks.healthy()
    assert job.seconds == [60]
    assert ended == ["poll"]
    assert status(tasks, "poll").last_outcome == "cancelled"
    [failure] = told
    assert (failure.task, failure.tick, failure.outcome) == ("fails", None, "failed")
    assert repr(failure.error) == "LookupError('gone')"


async def test_run_goes_on_until_it_is_stopped_or_cancelled(place: Cluster, job: Job) -> None:
    tasks = job.on(place.tasks())
    ready = asyncio.Event()
    running = asyncio.create_task(tasks.run(ready=ready.set))
    await ready.wait()
    await place.advance(60)
    await tasks.stop()
    await running
    running = asyncio.create_task(tasks.run())
    await place.advance(60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not tasks.running
    assert job.seconds == [60, 120]
