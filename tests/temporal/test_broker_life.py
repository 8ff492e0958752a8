"""How a broker begins, goes on with another release, and ends; and what it does with what it can't read."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from dibs.core.codec import encode
from dibs.errors import DibsError
from dibs.model import (
    Acquire,
    Failed,
    Granted,
    Inspect,
    Notification,
    Queued,
    Release,
    Renew,
    Renewed,
    Status,
)
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import (
    FORMAT,
    BrokerCall,
    BrokerInput,
    bytes_of,
    text_of,
)
from dibs.temporal.broker import owners
from dibs.temporal.broker.book import BrokerBook
from dibs.temporal.broker.owners import WAITS, OwnerWatch
from dibs.temporal.broker.workflow import DibsBroker
from dibs.temporal.fair.calls import Broker, BrokerCalls, PendingCall
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import QUICK, HastyBroker, Waiter, serving
from tests.temporal.workers import unique, until

pytestmark = [pytest.mark.once]

NOBODY = "01a201dc-139d-7c25-967c-4abd85365a06"
SECRET = "an-id-that-nobody-may-see"


async def test_it_ends_by_itself_and_its_tokens_go_on(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, HastyBroker) as here:
        first = await here.ask(here.acquire("a"))
        await here.ask(Release(here.key, "a"))
        await here.ask(here.acquire("nobody's for long", ttl=0.2))
        await here.handle.result()
        second = await here.ask(here.acquire("b"))
        assert isinstance(first, Granted)
        assert isinstance(second, Granted)
        assert second.token > first.token


async def test_it_does_not_end_while_something_is_held(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HastyBroker, "IDLE", 0.1)
    async with serving(temporal_server.address, HastyBroker) as here:
        await here.ask(here.acquire("a", ttl=1e12))

        async def was_idle_twice() -> bool:
            fired = [e for e in await here.events() if e.HasField("timer_fired_event_attributes")]
            return len(fired) >= 2

        await until(was_idle_twice)
        assert (await here.status()).holders
        assert len(await here.events()) < 25


async def test_cancelled_it_ends_when_nothing_is_held(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        await here.handle.cancel()
        assert isinstance(await here.ask(here.acquire("b")), Queued)
        assert isinstance(await here.ask(Renew(here.key, "a", 30.0)), Renewed)
        await here.ask(Release(here.key, "b"))
        run = (await here.handle.describe()).run_id
        await here.ask(Release(here.key, "a"))
        await here.client.get_workflow_handle(here.handle.id, run_id=run).result()


async def test_a_closed_run_that_asked_for_it_frees_what_it_held(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.2)
    served = (DibsBroker, Waiter)
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        await here.ask(Inspect(here.key))
        holder = await here.waiter("w1", hold=-1, ttl=600, fast=True)
        while not (await here.status()).holders:
            await asyncio.sleep(0.02)
        after = await here.waiter("w2", hold=0)
        await here.until_waiting(1)
        await holder.terminate()
        assert await after.result()


async def test_a_plain_client_is_no_run_to_be_looked_after(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one whose run can't be one, whatever it asks for."""
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.1)
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a", ttl=600.0, capacity=2), fast=True)
        ask = encode(here.acquire("b", ttl=600.0, capacity=2))
        await here.handle.signal(ids.APPLY, BrokerCall([ask], 1, "me", "no-run", fast=True))
        await here.ask(here.acquire("c", capacity=2, inbox="plain"))
        await here.ask(here.acquire("d", capacity=2))
        await asyncio.sleep(0.3)
        await here.ask(Inspect(here.key))
        kinds = [
            e for e in await here.events() if e.HasField("activity_task_scheduled_event_attributes")
        ]
        assert not kinds
        assert len((await here.status()).holders) == 2


async def test_without_asking_for_it_a_lease_stands_when_its_run_closes(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.1)
    served = (DibsBroker, Waiter)
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        await here.ask(Inspect(here.key))
        holder = await here.waiter("w1", hold=-1, ttl=2)
        while not (found := (await here.status()).holders):
            await asyncio.sleep(0.02)
        after = await here.waiter("w2", hold=-1)
        await here.until_waiting(1)
        await holder.terminate()
        await asyncio.sleep(0.4)
        assert (await here.status()).holders[0].token == found[0].token
        await after.signal("leave")
        assert await after.result() > found[0].token


async def test_a_workflow_that_ended_is_in_nobodys_way_though_it_does_not_fit(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.2)
    served = (DibsBroker, Waiter)
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        await here.ask(here.acquire("a", ttl=600.0, capacity=2))
        wide = await here.waiter("wide", capacity=2, units=2)
        await here.until_waiting(1)
        after = await here.waiter("after", capacity=2)
        await here.until_waiting(2)
        await wide.terminate()
        assert await after.result()


async def test_no_lease_id_is_shown(
    temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(temporal_server.address) as here:
        caplog.set_level("DEBUG", logger="temporalio.workflow")
        await here.ask(here.acquire(SECRET, note="the nightly run"))
        await here.ask(here.acquire(f"{SECRET}-2", inbox="nobody"))
        metadata = await here.handle.query("__temporal_workflow_metadata")
        assert "the nightly run" in str(metadata)
        assert "1 of 1 taken, 1 waiting" in str(metadata)
        assert SECRET not in str(metadata)
        assert SECRET not in caplog.text
        for event in await here.events():
            assert SECRET.encode() not in event.user_metadata.SerializeToString()


async def test_a_newer_call_is_refused_and_leaves_no_trace(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await here.call(here.acquire("b"), format=FORMAT + 1)
        cause = refused.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "IncompatibleVersion"
        assert str(FORMAT + 1) in str(cause)
        newer = BrokerCall([encode(here.acquire("c"))], 1, "nobody", "no-run", format=FORMAT + 1)
        await here.handle.signal(ids.APPLY, newer)
        assert not (await here.status()).waiting


async def test_with_a_newer_state_nothing_is_granted_and_nothing_lost(
    temporal_server: TemporalServer,
) -> None:
    given = BrokerInput(text_of(b"lock:a"), {"book": "?"}, format=FORMAT + 1)
    async with serving(temporal_server.address) as here:
        handle = await here.client.start_workflow(
            ids.BROKER, given, id=unique("broker"), task_queue=here.queue
        )
        while True:
            events = (await handle.fetch_history()).events
            failed = [e for e in events if e.HasField("workflow_task_failed_event_attributes")]
            if failed:
                break
            await asyncio.sleep(0.05)
        said = failed[0].workflow_task_failed_event_attributes.failure.message
        assert f"is of format {given.format}" in said
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
        await handle.terminate()


async def test_what_nobody_of_ours_would_send_does_no_harm(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a", ttl=1e300, capacity=3))
        huge = here.acquire("b", ttl=1e300, waiter_ttl=1e300, units=3, capacity=3, inbox="x")
        assert isinstance(await here.ask(huge), Queued)
        odd = [["acquire"], ["nothing"], [], {}, "x", encode(huge)[:3]]
        for workflow_id, run_id in (
            ("nobody", "no-run"),
            ("", ""),
            ("x", NOBODY),
            ("\ud800", NOBODY),
        ):
            await here.handle.signal(ids.APPLY, BrokerCall(odd, 1, workflow_id, run_id))
        await here.handle.signal(ids.APPLY, "no call at all")
        answer = await here.handle.execute_update(ids.APPLY, BrokerCall(odd))
        assert [reply[0] for reply in answer["replies"]] == ["failed"] * 6
        assert isinstance(await here.ask(Renew(here.key, "a", 30.0)), Renewed)


async def test_it_runs_in_the_sandbox_as_temporal_has_it(temporal_server: TemporalServer) -> None:
    runner = SandboxedWorkflowRunner()
    async with serving(temporal_server.address, DibsBroker, workflow_runner=runner) as here:
        assert isinstance(await here.ask(here.acquire("a")), Granted)
        assert len((await here.status()).holders) == 1


async def test_what_it_just_did_can_be_replayed(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, HastyBroker, Waiter) as here:
        await here.ask(here.acquire("a", ttl=0.3))
        waiters = [await here.waiter(f"w{number}", hold=0) for number in range(6)]
        for waiter in waiters:
            await waiter.result()
        chain = await here.chain()
    assert len(chain) > 1
    replayer = Replayer(workflows=[HastyBroker], workflow_runner=QUICK)
    for events in chain:
        await replayer.replay_workflow(WorkflowHistory(ids.broker_id(here.key), events))


async def test_a_query_tells_the_status(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a", ttl=0.05))
        await asyncio.sleep(0.1)
        assert not (await here.status()).holders
        inspected = await here.ask(Inspect(here.key))
        assert isinstance(inspected, Status)
        assert not isinstance(inspected, Failed)


async def test_an_error_of_ours_fails_its_task_and_not_the_broker(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended it would have lost all that is held; so its task is tried again, until it is mended."""
    really, planted = BrokerBook.settle, [DibsError("a defect")]

    def broken(book: BrokerBook, now: float, stamp: int) -> list[Notification]:
        if planted:
            raise planted.pop()
        return really(book, now, stamp)

    async with serving(temporal_server.address) as here:
        held = await here.ask(here.acquire("a", ttl=600.0))
        monkeypatch.setattr(BrokerBook, "settle", broken)
        again = await here.ask(here.acquire("a", ttl=600.0))
        assert not planted
        assert isinstance(held, Granted)
        assert isinstance(again, Granted)
        assert again.token == held.token
        assert (await here.handle.describe()).status is WorkflowExecutionStatus.RUNNING
        failures = [e.workflow_task_failed_event_attributes.failure for e in await here.events()]
        said = [each.message for each in failures if each.message]
        assert said == ["the broker can't go on: a defect"]


@workflow.defn
class Quitter:
    """Waits for a lease, and continues as new to something else instead."""

    def __init__(self) -> None:
        self._quit = False

    @workflow.signal
    def quit(self) -> None:
        self._quit = True

    @workflow.run
    async def run(self, key: str, units: int) -> None:
        if key:
            info = workflow.info()
            ask = Acquire(key.encode(), "q", "quitter", 60.0, units=units, capacity=2, queue=True)
            call = BrokerCall([encode(ask)], 1, info.workflow_id, info.run_id)
            broker = workflow.get_external_workflow_handle(ids.broker_id(key.encode()))
            await broker.signal(ids.APPLY, call)
        await workflow.wait_condition(lambda: self._quit)
        if key:
            workflow.continue_as_new(args=["", 0])


async def test_a_head_that_continued_as_new_waits_no_longer(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it held it might hold on, as permits are handed over; so the run counts as ended for one only."""
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.2)
    served = (DibsBroker, Waiter, Quitter)
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        await here.ask(here.acquire("a", ttl=600.0, capacity=2))
        head = await here.client.start_workflow(
            Quitter.run, args=[here.key.decode(), 2], id=unique("quitter"), task_queue=here.queue
        )
        await here.until_waiting(1)
        after = await here.waiter("after", capacity=2)
        await here.until_waiting(2)
        await head.signal(Quitter.quit)
        assert await after.result()
        run = [head.id, head.first_execution_run_id or ""]
        environment = ActivityEnvironment(client=here.client)
        found = await environment.run(owner_closed, [run, [*run, WAITS]])
        assert found == [False, True]
        await here.client.get_workflow_handle(head.id).signal(Quitter.quit)


async def test_one_that_can_t_be_told_counts_as_open_and_keeps_no_other_from_being_told(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(Inspect(here.key))
        runs = [[here.handle.id, "no run ID at all"], [unique("never"), str(uuid4())]]
        runs.append([here.handle.id, ""])  # its newest
        found = await ActivityEnvironment(client=here.client).run(owner_closed, runs)
        assert found == [False, True, False]


async def test_a_broker_goes_on_where_nobody_can_tell(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker has the activity: it is asked again, and all else is served."""
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.1)
    monkeypatch.setattr(owners, "_PATIENCE", timedelta(seconds=0.2))
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a", ttl=600.0))
        waiter = await here.waiter("w")
        await here.until_waiting(1)

        async def asked_again() -> bool:
            scheduled = "activity_task_scheduled_event_attributes"
            asked = [event for event in await here.events() if event.HasField(scheduled)]
            return len(asked) > 1

        await until(asked_again)
        await here.ask(Release(here.key, "a"))
        assert await waiter.result()


async def test_it_looks_in_time_however_often_the_broker_continues_as_new(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is shorter than the time between two looks."""
    monkeypatch.setattr(OwnerWatch, "EVERY", 2.0)
    served = HastyBroker, Waiter
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        await here.ask(Inspect(here.key))
        holder = await here.waiter("held", hold=-1, ttl=600, fast=True)
        while not (await here.status()).holders:
            await asyncio.sleep(0.02)
        await here.ask(here.acquire("next", ttl=600.0, waiter_ttl=600.0))
        while len(await here.chain()) < 2:
            await here.ask(Inspect(here.key))
        await holder.terminate()
        async with asyncio.timeout(15):
            again = here.acquire("next", ttl=600.0, waiter_ttl=600.0)
            while not isinstance(await here.ask(again), Granted):
                await asyncio.sleep(0.02)


@workflow.defn
class Starter:
    """Starts a broker as a fair permit does."""

    @workflow.run
    async def run(self, key: str) -> bool:
        call = PendingCall(Broker(key.encode(), workflow.info().task_queue), [], starts=True)
        await BrokerCalls.of_this_run().send(call).wait_over()
        return call.delivered


async def test_one_that_a_workflow_starts_can_be_listed(temporal_server: TemporalServer) -> None:
    """The ID of a long name's broker has only a hash, so its memo has the key."""
    async with serving(temporal_server.address, DibsBroker, Starter) as here:
        here.key += b"/" + b"n" * 400
        starter = await here.client.start_workflow(
            Starter.run, here.key.decode(), id=unique("starter"), task_queue=here.queue
        )
        assert await starter.result()
        described = await here.handle.describe()
        assert bytes_of(await described.memo_value(ids.MEMO, type_hint=str)) == here.key
