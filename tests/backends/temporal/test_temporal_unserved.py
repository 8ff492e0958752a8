"""Brokers and permits on task queues that nobody serves."""

from uuid import uuid4

import pytest
from temporalio.client import Client

import dibs
from dibs.backends.temporal.protocol import ids, wire
from dibs.backends.temporal.protocol.permits import PermitSlotInput
from tests.servers.temporal import TemporalServer
from tests.temporal.workers import until

pytestmark = pytest.mark.once


async def test_a_broker_on_a_queue_that_nobody_serves_is_named(
    url: str, temporal_server: TemporalServer
) -> None:
    """Whoever started it there named another queue than we do, which is served."""
    nowhere, client = f"typo-{uuid4().hex[:8]}", await Client.connect(temporal_server.address)
    key = f"lock:{nowhere}".encode()
    stray = await client.start_workflow(
        ids.BROKER,
        wire.BrokerInput(wire.text_of(key)),
        id=ids.broker_id(key),
        task_queue=nowhere,
    )
    async with dibs.connect(url) as store:
        told = (
            f"nobody serves the task queue '{nowhere}', on which the broker {stray.id} in .*"
            f"terminate --workflow-id {stray.id}"
        )
        with pytest.raises(dibs.BackendUnavailable, match=told):
            await store.lock(nowhere, ttl="9s").acquire(wait=0)
    await stray.terminate()


async def test_doctor_tells_of_what_is_on_a_queue_that_nobody_serves(
    url: str, temporal_server: TemporalServer
) -> None:
    nowhere, client = f"typo-{uuid4().hex[:8]}", await Client.connect(temporal_server.address)
    stray = await client.start_workflow(
        ids.PERMIT,
        PermitSlotInput("stray", "0", 60.0),
        id=ids.permit_workflow_id(nowhere, "0"),
        task_queue=nowhere,
    )
    async with dibs.connect(url) as store:

        async def told() -> bool:
            found = [each for each in await store.examine() if nowhere in each.told]
            assert all(each.level == "problem" for each in found)
            return any(stray.id in each.told and "terminate" in each.advice for each in found)

        await until(told)
    await stray.terminate()
