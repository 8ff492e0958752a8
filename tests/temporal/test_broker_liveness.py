"""Which runs have ended, as the activity of brokers tells it, and what they make of that."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.testing import ActivityEnvironment

from dibs.backends.temporal.broker import watch as broker_watch
from dibs.backends.temporal.broker.watch import WAITS, Watch
from dibs.backends.temporal.broker.workflow import DibsBroker
from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.wire import Call, pack_command
from dibs.model import Acquire, Granted, Inspect, Release
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import HastyBroker, Waiter, serving
from tests.temporal.workers import unique, until

pytestmark = [pytest.mark.once]


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
            call = Call([pack_command(ask)], 1, info.workflow_id, info.run_id)
            broker = workflow.get_external_workflow_handle(ids.broker_id(key.encode()))
            await broker.signal(ids.APPLY, call)
        await workflow.wait_condition(lambda: self._quit)
        if key:
            workflow.continue_as_new(args=["", 0])


async def test_a_head_that_continued_as_new_waits_no_longer(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it held it might hold on, as permits are handed over; so the run counts as ended for one only."""
    monkeypatch.setattr(Watch, "EVERY", 0.2)
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
    monkeypatch.setattr(Watch, "EVERY", 0.1)
    monkeypatch.setattr(broker_watch, "_PATIENCE", timedelta(seconds=0.2))
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
    monkeypatch.setattr(Watch, "EVERY", 2.0)
    served = HastyBroker, Waiter
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        await here.ask(Inspect(here.key))
        holder = await here.waiter("held", hold=-1, ttl=600, fast=True)
        while not (await here.status()).holders:
            await asyncio.sleep(0.02)
        await here.ask(here.acquire("next", ttl=600.0, patience=600.0))
        while len(await here.chain()) < 2:
            await here.ask(Inspect(here.key))
        await holder.terminate()
        async with asyncio.timeout(15):
            again = here.acquire("next", ttl=600.0, patience=600.0)
            while not isinstance(await here.ask(again), Granted):
                await asyncio.sleep(0.02)
