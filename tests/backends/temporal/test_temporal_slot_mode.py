"""What `list` and `show` tell of slots that workflows hold in slot mode, without the broker."""

from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio.client import Client

import dibs
from dibs.backends.temporal.protocol import ids, wire
from dibs.backends.temporal.protocol.permits import PermitSlotInput
from dibs.model import Status
from tests.servers.temporal import TemporalServer
from tests.temporal.workers import until

pytestmark = pytest.mark.once


async def test_it_is_seen_whether_or_not_a_broker_runs(
    url: str, temporal_server: TemporalServer
) -> None:
    """A permit of somebody's, first alone, then beside what the broker has granted."""
    name, queue = f"pool'{uuid4().hex[:8]}", url.partition("task_queue=")[2]
    client = await Client.connect(temporal_server.address)
    permit = await client.start_workflow(
        ids.PERMIT,
        PermitSlotInput(name, "1", 60.0),
        id=ids.permit_id(name, "1"),
        task_queue=queue,
        execution_timeout=timedelta(minutes=2),
    )

    def shown(status: Status) -> list[tuple[str, str]]:
        return [(each.state, each.owner if each.state == "kept" else "") for each in status.holders]

    theirs = ("kept", permit.id)
    async with dibs.connect(url) as store:

        async def seen() -> bool:
            return shown(await store.status(name, "semaphore")) == [theirs]

        await until(seen)  # the index lags behind a little
        assert [shown(each) async for each in store.list(name, "semaphore")] == [[theirs]]
        assert not (await store.status(name, "lock")).holders
        lease = await store.semaphore(name, capacity=2).acquire()
        assert shown(await store.status(name, "semaphore")) == [("held", ""), theirs]
        assert await store.semaphore(name, capacity=2).try_acquire() is None
        await permit.signal("release")
        await permit.result()

        async def gone() -> bool:
            return shown(await store.status(name, "semaphore")) == [("held", "")]

        await until(gone)
        await lease.release()


async def test_a_broker_on_a_queue_that_nobody_serves_is_named(
    url: str, temporal_server: TemporalServer
) -> None:
    """Whoever started it there named another queue than we do, which is served."""
    nowhere, client = f"typo-{uuid4().hex[:8]}", await Client.connect(temporal_server.address)
    key = f"lock:{nowhere}".encode()
    stray = await client.start_workflow(
        ids.BROKER,
        wire.BrokerInput(wire.text_of(key), False),
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
        id=ids.permit_id(nowhere, "0"),
        task_queue=nowhere,
    )
    async with dibs.connect(url) as store:

        async def told() -> bool:
            found = [each for each in await store.examine() if nowhere in each.told]
            assert all(each.level == "problem" for each in found)
            return any(stray.id in each.told and "terminate" in each.advice for each in found)

        await until(told)
    await stray.terminate()
