"""Permits of a broker where things go wrong: a holder ends, a waiter, the worker, or the broker itself."""

import logging
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from dibs.model import Acquire, Granted, Queued, Revoke
from dibs.temporal.broker.owners import OwnerWatch
from dibs.temporal.fair import acquire as brokered_place
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import inbox_of
from tests.temporal.fair_flows import FLOWS, Held, Holding, Relay, Siblings, TwoSemaphores, TwoTasks
from tests.temporal.fair_world import WORKFLOWS, Handle, World, fair_world
from tests.temporal.workers import (
    count,
    kinds,
    replay,
    reset_to,
    unique,
    until,
    until_at_rest,
    worker,
)

pytestmark = [pytest.mark.once]


async def failure_of(handle: Handle) -> ApplicationError:
    """What a workflow has failed with."""
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause


async def test_a_permit_is_handed_to_the_next_run_which_is_told_of_its_loss(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        relay = await world.start(Relay.run, world.wish(), 3, None)
        await world.until_holding(relay)
        token = (await world.status()).holders[0].token
        waiter = await world.waiting(hold=0)
        for _ in range(2):
            await relay.signal(Relay.leave)
            await world.until_next_run_holds(relay)
        status = await world.status()
        assert [holder.token for holder in status.holders] == [token]
        assert status.waiting == 1
        await world.broker.ask(Revoke(world.broker.key, None, "an operator wants it"))
        assert (await failure_of(relay)).type == "LeaseLost"
        assert (await waiter.result()).token > token


async def test_a_waiter_that_was_terminated_is_passed_over(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        gone = await world.waiting()
        waiter = await world.waiting(hold=0)
        await gone.terminate()
        await holder.signal(Holding.leave)
        await waiter.result()
        await world.until_free()


async def test_a_terminated_holder_keeps_it_until_its_lease_ends(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding(acquire={"ttl": 3})
        waiter = await world.waiting(hold=0)
        expires_in = (await world.status()).holders[0].expires_in
        began = (await world.broker_time()) + expires_in
        await holder.terminate()
        assert (await waiter.result()).since >= began - 0.1


async def test_fast_frees_what_a_terminated_holder_had_but_not_what_was_handed_on(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.2)
    fast = {"on_holder_close": "fast"}
    async with fair_world(temporal_server) as world:
        relay = await world.start(Relay.run, world.wish(semaphore=fast), 2, None)
        await world.until_holding(relay)
        waiter = await world.waiting(hold=0)
        await relay.signal(Relay.leave)
        await world.until_next_run_holds(relay)
        before = await looks(world)

        async def both_were_looked_at() -> bool:
            return await looks(world) > before + 2  # the first may have been under way by then

        await until(both_were_looked_at)
        assert (await world.status()).waiting == 1
        await world.client.get_workflow_handle(relay.id).terminate()
        await waiter.result()


async def looks(world: World) -> int:
    """How often the broker has been told who has ended."""
    return count(await world.broker.handle.fetch_history())["ACTIVITY_TASK_COMPLETED"]


async def test_all_goes_on_when_the_worker_comes_back(temporal_server: TemporalServer) -> None:
    away = timedelta(seconds=0.5)  # so long the server waits for a worker that knows the run
    async with fair_world(temporal_server, sticky_queue_schedule_to_start_timeout=away) as world:
        holder = await world.holding()
        waiters = [await world.waiting(hold=0) for _ in range(3)]
        other = await world.start(TwoSemaphores.run, world.wish(hold=0))
        await world.until_waiting(4)
        flows = [holder, *waiters, other]
        await until_at_rest(world.client, world.broker.handle.id, *(flow.id for flow in flows))
    await holder.signal(Holding.leave)
    async with worker(world.client, *WORKFLOWS, queue=world.queue, activities=[owner_closed]):
        turns = [await waiter.result() for waiter in waiters]
        assert [turn.token for turn in turns] == sorted(turn.token for turn in turns)
        await other.result()


async def test_each_task_replays_the_whole_history_and_leaves_no_word_behind(
    temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with fair_world(temporal_server, cached=False) as world:
        holder = await world.holding()
        waiter = await world.waiting()
        tasks = await world.start(TwoTasks.run, world.wish(hold=0))
        await world.until_waiting(3)
        await waiter.cancel()
        await holder.signal(Holding.leave)
        await tasks.result()
        flows = [holder, waiter, tasks, await world.start(Siblings.run, world.wish(), unique())]
        await world.until_free()
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == []
    for flow in flows[:3]:
        history = await flow.fetch_history()
        await replay(history, *FLOWS, sandboxed=flow is tasks)  # which takes us in anew


async def test_the_sandbox_takes_us_in_without_exceptions(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server, workflow_runner=SandboxedWorkflowRunner()) as world:
        assert len(await world.run(TwoTasks.run, world.wish(hold=0))) == 2


async def test_a_broker_that_was_terminated_takes_its_grants_with_it_and_waiters_ask_again(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokered_place, "REMINDERS", (1.0,))
    async with fair_world(temporal_server) as world:
        holder = await world.holding(acquire={"ttl": 3})
        waiter = await world.waiting()
        await world.broker.handle.terminate()
        failure = await failure_of(holder)
        assert failure.type == "LeaseLost"
        assert "ended from outside (its broker is gone)" in failure.message
        await world.until_holding(waiter)
        await waiter.signal(Holding.leave)
        await waiter.result()


async def test_a_permit_that_the_next_broker_has_only_queued_is_lost_at_once(
    temporal_server: TemporalServer,
) -> None:
    """A reminder of its acquire was under way when the broker was terminated."""
    async with fair_world(temporal_server) as world:
        holder = await world.holding(acquire={"ttl": 6})
        reminder = (await world.broker.commands())[0]
        assert isinstance(reminder, Acquire)
        await world.broker.handle.terminate()
        other = await world.broker.ask(world.broker.acquire("another holder"))
        assert isinstance(other, Granted)
        inbox = inbox_of(holder.id, holder.first_execution_run_id or "")
        again = await world.broker.ask(replace(reminder, inbox=inbox))
        assert isinstance(again, Queued)
        failure = await failure_of(holder)
        assert failure.type == "LeaseLost"
        assert "its broker was ended, and another lease has its place" in failure.message
        await world.until_waiting(0)


async def test_a_broker_that_nobody_serves_is_told_of(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokered_place, "ANSWERED", 0.5)
    async with fair_world(temporal_server) as world:
        more = {"task_queue": unique("served-by-nobody")}
        flow = await world.start(Holding.run, world.wish(semaphore=more, acquire={"wait": 0.1}))
        failure = await failure_of(flow)
        assert failure.type == "BackendUnavailable"
        assert f"temporal worker --task-queue {more['task_queue']}" in failure.message
        assert "on which it has just been started" in failure.message
        again = world.wish(semaphore=more, acquire={"wait": 0.1})
        failure = await failure_of(await world.start(Holding.run, again))
        assert "it has been there before" in failure.message
        await world.broker.handle.terminate()


async def test_a_waiter_that_is_reset_asks_anew(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        waiter = await world.waiting(hold=0)
        run_id = (await waiter.describe()).run_id
        reset = await reset_to(world.client, waiter.id, run_id or "", 4)

        async def waits_anew() -> bool:
            # The old run's place goes when the broker can't tell it something: now, or at its turn.
            waiters = (await world.status()).waiters
            return any(f"{waiter.id}/{reset}/" in each.owner for each in waiters)

        await until(waits_anew)
        await holder.signal(Holding.leave)
        await world.client.get_workflow_handle(waiter.id).result()
        await world.until_free()


async def test_a_quarantine_keeps_what_a_cancelled_holder_had(
    temporal_server: TemporalServer,
) -> None:
    """Its block has ended by an error, so an activity of it may run on."""
    async with fair_world(temporal_server) as world:
        holder = await world.holding(semaphore={"quarantine": 1.5})
        waiter = await world.waiting(hold=0)
        cancelled_at = await world.broker_time()
        await holder.cancel()
        with pytest.raises(WorkflowFailureError):
            await holder.result()
        assert (await waiter.result()).since >= cancelled_at + 1.5


async def test_a_quarantine_outlasts_a_terminated_holder_s_lease(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        brief = {"ttl": 1.0, "auto_renew": False}
        holder = await world.holding(acquire=brief, semaphore={"quarantine": 2.0})
        waiter = await world.waiting(hold=0)
        terminated_at = await world.broker_time()
        await holder.terminate()
        assert (await waiter.result()).since >= terminated_at + 2.0


async def test_a_holder_that_is_reset_and_another_never_hold_both(
    temporal_server: TemporalServer,
) -> None:
    """It goes on with what it had, which the other gets when it is released."""
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        other = await world.waiting(hold=0)
        run_id = (await holder.describe()).run_id
        history = await holder.fetch_history()
        told = kinds(history).index("WORKFLOW_EXECUTION_SIGNALED")
        held_from = kinds(history).index("WORKFLOW_TASK_COMPLETED", told) + 1
        reset = await reset_to(world.client, holder.id, run_id or "", held_from)
        again = world.client.get_workflow_handle(holder.id, run_id=reset, result_type=Held)
        await world.until_holding(again)
        await again.signal(Holding.leave)
        mine, theirs = await again.result(), await other.result()
        assert mine.until <= theirs.since
        assert mine.token < theirs.token
        await world.until_free()
