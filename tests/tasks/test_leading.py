"""Tasks of a leader, tasks that last, and how a scheduler starts and stops."""

import asyncio
import threading
from typing import Any

import pytest

from dibs import LeaderElection, LeaseLost, TaskLock
from dibs.tasks import TaskFailure, TaskRouter, Tasks
from tests.tasks.conftest import Cluster, Job, cluster, counts, eventually, status, turn


def led(place: Cluster, **options: Any) -> tuple[Tasks, LeaderElection]:
    client = place.client()[1]
    return Tasks(client=client, clock=place.clock, **options), client.leader_election("main")


async def leads(leader: LeaderElection) -> None:
    await eventually(leader.is_leader)
    await turn()


async def test_only_the_leader_runs_it_and_the_next_one_goes_on(place: Cluster) -> None:
    job = Job(place)
    (one, first), (two, second) = led(place), led(place)
    job.on(one, "one", leader=first)
    job.on(two, "two", leader=second)
    async with two:
        async with one:
            await turn()
            # whoever was elected first
            was, other = (first, second) if first.is_leader() else (second, first)
            await place.advance(130)
            assert job.seconds == [60, 120]
            names = {where for where, _ in job.ran}
            assert len(names) == 1
            assert was.resign()
            await leads(other)
            await place.advance(60)
            assert job.seconds == [60, 120, 180]
            assert {where for where, _ in job.ran} == {"one", "two"}
        await leads(second)
        await place.advance(60)
    assert job.ran[-1] == ("two", 240.0)
    assert not second.is_leader()


async def test_a_follower_asks_nobody(place: Cluster) -> None:
    job = Job(place)
    store, client = place.client()
    tasks, leader = Tasks(client=client, clock=place.clock), client.leader_election("main")
    async with place.client()[1].leader_election("main").campaign() as elsewhere:
        await elsewhere.wait()
        async with job.on(tasks, leader=leader):
            await place.advance(50)
            store.batches.clear()
            await place.advance(20)
            sent = [command.key for batch in store.batches for command in batch]
            assert not [key for key in sent if key.startswith(b"tasklock:")]
            assert status(tasks).next_run is None
    assert job.ran == []


async def test_a_run_is_cancelled_when_the_term_ends(
    place: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(place)
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
    place: Cluster, missed: Any, won: int
) -> None:
    job = Job(place)
    tasks, leader = led(place)
    async with place.client()[1].leader_election("main").campaign() as elsewhere:
        await elsewhere.wait()
        await job.on(tasks, leader=leader, missed=missed).start()
        await turn()
        await place.advance(63)
        assert job.ran == []
    await leads(leader)
    await place.advance(1)
    assert status(tasks).won == won
    await place.advance(56)
    assert counts(tasks) == (won + 1, 0, 0, 0)
    assert job.seconds[-1] == 120
    await tasks.stop()


async def test_a_campaign_of_one_s_own_is_left_alone(place: Cluster) -> None:
    job = Job(place)
    tasks, leader = led(place)
    async with leader.campaign() as campaign:
        await campaign.wait()
        async with job.on(tasks, leader=campaign):
            await place.advance(60)
        assert campaign.is_leader()
    assert job.seconds == [60]


async def test_a_task_of_a_leader_in_a_thread_ends_before_others_lead(place: Cluster) -> None:
    tasks, leader = led(place)
    may_end = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tasks.every("60s", name="job", leader=leader)
    def job() -> None:
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(20)

    rival = place.client()[1].leader_election("main")
    async with tasks, rival.campaign() as elsewhere:
        await turn()
        if not leader.is_leader():
            assert rival.resign()
            await leads(leader)
        await place.advance(61)
        await eventually(lambda: status(tasks).running)
        leader.resign()
        await turn()
        assert status(tasks).running, "nothing interrupts a thread"
        assert not elsewhere.is_leader()
        may_end.set()
        await eventually(elsewhere.is_leader)
        assert not status(tasks).running
        assert status(tasks).last_outcome == "lost"


async def test_a_body_s_own_lost_lease_is_its_failure(place: Cluster) -> None:
    tasks, leader = led(place)

    @tasks.every("60s", name="job", leader=leader)
    async def job() -> None:
        raise LeaseLost("another", key=b"lock:another")

    async with tasks:
        await place.advance(60)
        assert status(tasks).last_outcome == "failed"
        assert counts(tasks) == (1, 0, 0, 0)


# -- start and stop ----------------------------------------------------------------------------------


async def test_a_stop_waits_for_what_runs(place: Cluster) -> None:
    job = Job(place)
    tasks = job.on(place.tasks())
    job.may_end.clear()
    await tasks.start()
    await place.advance(60)
    stopping = asyncio.create_task(tasks.stop())
    await place.advance(120)
    assert not stopping.done()
    assert not tasks.running
    assert not tasks.healthy()
    job.may_end.set()
    await stopping
    assert job.seconds == [60], "no new tick"
    assert status(tasks).last_outcome == "done"
    assert not await TaskLock("job", 0, 9, client=place.client()[1]).locked()


async def test_what_takes_too_long_is_cancelled(
    place: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(place)
    tasks = job.on(place.tasks(shutdown_timeout=0.05), min_hold="30s")
    job.may_end.clear()
    async with tasks:
        await place.advance(60)
    assert status(tasks).last_outcome == "cancelled"
    assert "task job did not end within 0.05 s, and is cancelled" in caplog.text
    lock = TaskLock("job", 30, 60, client=place.client()[1])
    assert (await lock.status()).holders[0].state == "retained", "min_hold stands"


async def test_a_thread_that_does_not_end_keeps_its_lock_and_not_the_stop(
    place: Cluster,
) -> None:
    tasks = place.tasks(shutdown_timeout=0.05)
    may_end = threading.Event()

    @tasks.every("60s", name="job")
    def job() -> None:
        assert may_end.wait(20)

    other = TaskLock("job", 0, 60, client=place.client()[1])
    async with tasks:
        await place.advance(60)
        await eventually(lambda: status(tasks).running)
    assert status(tasks).last_outcome == "cancelled"
    assert await other.locked()
    may_end.set()
    while await other.locked():
        await asyncio.sleep(0.001)


async def test_a_stop_that_is_cancelled_waits_no_longer(place: Cluster) -> None:
    job = Job(place)
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
    store, client = place.client()
    tasks = Job(place).on(Tasks(client=client, clock=place.clock))
    await tasks.start()
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


async def test_starting_twice_is_an_error_and_stopping_twice_is_fine(place: Cluster) -> None:
    tasks = place.tasks()
    await tasks.stop()
    await tasks.start()
    with pytest.raises(RuntimeError, match="run already: start them once"):
        await tasks.start()
    await asyncio.gather(tasks.stop(), tasks.stop())
    await tasks.stop()
    assert not tasks.running


def test_it_can_be_started_again_in_another_loop() -> None:
    tasks: Any = None
    ran = []

    async def main() -> None:
        nonlocal tasks
        async with cluster() as place:
            client = place.client()[1]
            if tasks is None:
                tasks = Tasks(clock=place.clock)
                tasks.every("60s", name="job")(lambda: ran.append(1))
            tasks._client, tasks._clock = client, place.clock
            before = len(ran)
            async with tasks:
                await place.advance(60)
                await eventually(lambda: len(ran) > before)
                ran.append(0)

    asyncio.run(main())
    asyncio.run(main())
    assert ran == [1, 0, 1, 0]
    assert status(tasks).won == 2


async def test_tasks_may_be_added_while_it_runs(place: Cluster) -> None:
    job, router, began = Job(place), TaskRouter(), []

    @router.add
    async def go_on() -> None:
        began.append(place.second)
        await asyncio.Event().wait()

    async with place.tasks() as tasks:
        await place.advance(30)
        job.on(tasks)
        tasks.include_router(router, prefix="more")
        await turn()
        await place.advance(30)
        assert job.seconds == [60]
        assert began == [30]

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="add one in the event loop that runs them"):
                tasks.every("60s", name="late")(lambda: None)

        await asyncio.to_thread(elsewhere)
        assert "late" not in tasks.status()
    assert next(iter(tasks.status())) == "job"


async def test_a_lasting_task_goes_on_and_is_cancelled_at_once(place: Cluster) -> None:
    tasks, told = place.tasks(shutdown_timeout="1h"), []

    async def poll() -> None:
        told.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            told.append("ends")

    tasks.add(poll, name="poll")
    async with tasks:
        await turn()
        assert status(tasks, "poll").running
        assert status(tasks, "poll").schedule == "from start to stop"
        assert tasks.healthy()
    assert told == ["begins", "ends"]
    assert status(tasks, "poll").last_outcome == "cancelled"


async def test_a_lasting_task_that_fails_is_reported_and_unhealthy(
    place: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[TaskFailure] = []
    job, tasks = Job(place), place.tasks(on_error=told.append)

    async def poll() -> None:
        raise LookupError("gone")

    tasks.add(poll, name="poll")
    async with job.on(tasks):
        await place.advance(60)
        assert not tasks.healthy()
    assert job.seconds == [60]
    [failure] = told
    assert (failure.task, failure.tick, failure.outcome) == ("poll", None, "failed")
    assert repr(failure.error) == "LookupError('gone')"


async def test_run_goes_on_until_it_is_stopped_or_cancelled(place: Cluster) -> None:
    job = Job(place)
    tasks = job.on(place.tasks())
    ready = asyncio.Event()
    running = asyncio.create_task(tasks.run(ready=ready.set))
    await ready.wait()
    assert tasks.running
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
    assert counts(tasks) == (2, 0, 0, 0)
