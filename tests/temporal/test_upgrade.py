"""What an earlier release has begun goes on under today's worker: it takes over the very runs."""

import asyncio
from typing import Any

import pytest

from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.permits import PermitSlotInput
from dibs.model import Granted, Release, Renew, Renewed
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from dibs.temporal.worker.liveness import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import QUICK, Brokered, HastyBroker, Waiter
from tests.temporal.older_release import OlderWorker
from tests.temporal.workers import connected, unique, worker

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]

TODAY: dict[str, Any] = {"activities": [owner_closed], "workflow_runner": QUICK}


async def later_runs(here: Brokered, many: int) -> None:
    """Have the broker continue as new so often, and be asked in the last of these runs."""
    wanted = len(await here.chain()) + many
    while len(await here.chain()) < wanted or not _was_asked(await here.events()):
        assert isinstance(await here.ask(Renew(here.key, "a", 600.0)), Renewed)


def _was_asked(events: list[Any]) -> bool:
    return any(e.HasField("workflow_execution_update_completed_event_attributes") for e in events)


async def waiting(here: Brokered, entry_id: str, queue: str) -> Any:
    """A workflow that waits at the broker, and is itself served by today's code."""
    before = (await here.status()).waiting
    handle = await here.client.start_workflow(
        Waiter.run,
        args=[here.key.decode(), entry_id, 0, 600, {}],
        id=unique("waiter"),
        task_queue=queue,
    )
    await here.until_waiting(before + 1)
    return handle


async def test_a_broker_that_an_earlier_release_began(temporal_server: TemporalServer) -> None:
    """With its snapshots, in the midst of a run; and while workers of both releases serve it."""
    here = Brokered(await connected(temporal_server), unique("queue"))
    async with worker(here.client, Waiter, workflow_runner=QUICK) as queue:
        with OlderWorker(temporal_server.address, here.queue):
            held = await here.ask(here.acquire("a", ttl=600.0))
            waiters = [await waiting(here, "w1", queue)]
            await later_runs(here, 1)
            waiters += [await waiting(here, "w2", queue)]
            async with worker(here.client, HastyBroker, queue=here.queue, **TODAY):
                await later_runs(here, 3)
            await later_runs(here, 1)  # by the older one alone, from what the other has left
        async with worker(here.client, HastyBroker, queue=here.queue, **TODAY):
            waiters += [await waiting(here, "w3", queue)]
            again = await here.ask(here.acquire("a", ttl=600.0))
            assert isinstance(held, Granted)
            assert isinstance(again, Granted)
            assert again.token == held.token
            await later_runs(here, 1)
            await here.ask(Release(here.key, "a"))
            tokens = [held.token, *[await each.result() for each in waiters]]
            assert tokens == sorted(set(tokens))
    for events in await here.chain():
        failed = [e for e in events if e.HasField("workflow_task_failed_event_attributes")]
        assert not failed, failed[0]


async def test_a_permit_that_an_earlier_release_began(temporal_server: TemporalServer) -> None:
    client, queue, resource = await connected(temporal_server), unique("queue"), unique("slots")
    with OlderWorker(temporal_server.address, queue):
        permit = await client.start_workflow(
            ids.PERMIT,
            PermitSlotInput(resource, "0", 60.0, quarantine_seconds=60.0),
            id=ids.permit_id(resource, "0"),
            task_queue=queue,
            result_type=str,
        )
        until: float = await permit.execute_update("extend", 300.0)
    async with worker(client, PermitSlotWorkflow, queue=queue, workflow_runner=QUICK):
        assert (await permit.query("status"))["deadline"] == until
        await permit.cancel()
        while not (await permit.query("status"))["retiring"]:
            await asyncio.sleep(0.02)
        await permit.signal("release")
        assert await permit.result() == "released"
