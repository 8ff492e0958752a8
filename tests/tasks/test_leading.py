"""Tasks of a leader: run by it alone, cancelled with its term, taken over by the next."""

import asyncio
from typing import Any

import pytest

from dibs import LeaderElection, LeaseLost
from dibs.tasks import Tasks
from tests.tasks.places import Cluster, eventually, turn
from tests.tasks.test_ticks import Job, counts, status


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


async def test_who_does_not_lead_asks_nobody(place: Cluster) -> None:
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


async def test_a_new_leader_makes_up_for_what_nobody_ran(place: Cluster) -> None:
    job = Job(place)
    tasks, leader = led(place)
    async with place.client()[1].leader_election("main").campaign() as elsewhere:
        await elsewhere.wait()
        await tasks_start(job.on(tasks, leader=leader, missed="latest"))
        await place.advance(100)
        assert job.ran == []
    await leads(leader)
    await place.advance(1)
    assert status(tasks).won == 1
    assert str(status(tasks).last_tick) == "2027-01-15 08:01:00+00:00"
    await tasks.stop()


async def tasks_start(tasks: Tasks) -> None:
    await tasks.start()
    await turn()


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


async def test_a_new_leader_leaves_alone_what_was_due_before(place: Cluster) -> None:
    job = Job(place)
    tasks, leader = led(place)
    async with place.client()[1].leader_election("main").campaign() as elsewhere:
        await elsewhere.wait()
        await tasks_start(job.on(tasks, leader=leader))
        await place.advance(63)
    await leads(leader)
    await place.advance(57)
    assert job.seconds == [120]
    assert counts(tasks) == (1, 0, 0, 0)
    await tasks.stop()


async def test_a_body_s_own_lost_lease_is_its_failure(place: Cluster) -> None:
    tasks, leader = led(place)

    @tasks.every("60s", name="job", leader=leader)
    async def job() -> None:
        raise LeaseLost("another", key=b"lock:another")

    async with tasks:
        await place.advance(60)
        assert status(tasks).last_outcome == "failed"
        assert counts(tasks) == (1, 0, 0, 0)


async def test_an_election_is_a_task_and_tells_its_trouble(place: Cluster) -> None:
    tasks, leader = led(place)
    tasks.add(leader)
    async with tasks:
        await leads(leader)
        assert status(tasks, "leader:main").running
        assert status(tasks, "leader:main").schedule == "leader election"
        assert tasks.healthy()
    assert not leader.is_leader()
    assert not status(tasks, "leader:main").running
