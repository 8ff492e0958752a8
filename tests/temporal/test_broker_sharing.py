"""A broker that shares its slots with workflows that take permits without one: never both grant a slot."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from dibs.backends.temporal.broker.claims.claims import Claims
from dibs.backends.temporal.broker.watch import Watch
from dibs.backends.temporal.broker.workflow import DibsBroker
from dibs.backends.temporal.protocol import ids
from dibs.model import Failed, Granted, Lost, Queued, Refused, Release, Released, Renew, Reply
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from dibs.temporal.worker.liveness import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import Brokered, HastyBroker, Waiter, serving
from tests.temporal.workers import status_of

pytestmark = [pytest.mark.once]

SHARED = {"start": {"share": True}}
WORKFLOWS = (DibsBroker, PermitSlotWorkflow, Waiter)


class Pool(Brokered):
    """A semaphore of two slots that both ways of taking one know."""

    def __init__(self, here: Brokered, kind: str = "semaphore", capacity: int = 2) -> None:
        self.resource = f"pool-{uuid4().hex}"
        self.capacity = capacity
        super().__init__(here.client, here.queue, f"{kind}:{self.resource}".encode())

    async def try_for(self, entry_id: str, **more: Any) -> Reply:
        asked = self.acquire(entry_id, capacity=self.capacity, **{"queue": False, **more})
        return await self.ask(asked, **SHARED)

    def permit(self, slot: int) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(ids.permit_id(self.resource, str(slot)))

    async def take_permit(self, slot: int) -> WorkflowHandle[Any, Any]:
        """As a client of slot mode does."""
        return await self.client.start_workflow(
            ids.PERMIT,
            {"resource": self.resource, "slot": str(slot), "lease_seconds": 600},
            id=ids.permit_id(self.resource, str(slot)),
            task_queue=self.queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )

    async def is_open(self, slot: int) -> bool:
        return await status_of(self.client, self.permit(slot).id) == "RUNNING"

    async def until_open(self, slot: int, wanted: bool) -> None:
        while await self.is_open(slot) is not wanted:
            await asyncio.sleep(0.05)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "LINGER", 0.3)
    monkeypatch.setattr(Claims, "SLOWEST", 1.0)
    monkeypatch.setattr(Watch, "EVERY", 0.3)


async def test_a_slot_that_it_grants_can_not_be_taken_without_it(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here)
        first = await pool.try_for("a")
        assert isinstance(first, Granted)
        assert first.slots == (0,)
        with pytest.raises(WorkflowAlreadyStartedError):
            await pool.take_permit(0)
        await pool.take_permit(1)
        refused = await pool.try_for("b")
        assert isinstance(refused, Refused)
        assert refused.reason == "held"
        assert [each.owner for each in refused.holders] == ["owner of a", pool.permit(1).id]
        assert refused.holders[1].held_for < 60
        status = await pool.status()
        assert [each.owner for each in status.holders] == ["owner of a", pool.permit(1).id]


async def test_it_gives_back_what_nobody_wants(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here)
        await pool.try_for("a")
        await pool.ask(Release(pool.key, "a"))
        await pool.until_open(0, False)
        assert await pool.permit(0).result() == "released"
        assert not (await pool.status()).holders
        again = await pool.try_for("b")
        assert isinstance(again, Granted)


async def test_who_waits_gets_a_slot_when_a_workflow_leaves_it(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here, "lock", 1)
        permit = await pool.take_permit(0)
        assert isinstance(await pool.try_for("a", queue=True, patience=60.0), Queued)
        waiter = await pool.waiter("w", hold=0)
        await pool.until_waiting(2)
        await permit.signal("release")
        while not isinstance(await pool.ask(Renew(pool.key, "a", 30.0)), Granted):
            await asyncio.sleep(0.1)
        assert await pool.is_open(0)
        await pool.ask(Release(pool.key, "a"))
        assert await waiter.result()
        await pool.until_open(0, False)


async def test_several_units_take_several_permits(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here, capacity=4)
        await pool.take_permit(1)
        both = await pool.try_for("a", units=3)
        assert isinstance(both, Granted)
        assert both.slots == (0, 2, 3)
        assert isinstance(await pool.try_for("b"), Refused)


async def test_a_permit_that_somebody_ends_ends_its_lease(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, *WORKFLOWS, activities=[owner_closed]) as here:
        pool = Pool(here)
        await pool.try_for("a")
        await pool.permit(0).terminate()
        while isinstance(found := await pool.ask(Renew(pool.key, "a", 30.0)), Granted):
            await asyncio.sleep(0.05)
        while not isinstance(found, Lost):
            await asyncio.sleep(0.05)
            found = await pool.ask(Renew(pool.key, "a", 30.0))
        assert found.reason == "revoked"
        assert pool.permit(0).id in found.detail
        assert isinstance(await pool.try_for("b"), Granted)


async def test_a_permit_outlives_what_was_granted_of_its_slot(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here)
        for ttl in (4000.0, 9000.0):
            ends = time.time() + ttl
            await pool.try_for("a", ttl=ttl)
            while (await pool.permit(0).query("status"))["deadline"] < ends:
                await asyncio.sleep(0.02)


async def test_a_name_too_long_for_permits_is_served_without(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here)
        pool.key = b"semaphore:" + b"n" * 250
        assert isinstance(await pool.try_for("a"), Granted)
        assert isinstance(await pool.ask(Release(pool.key, "a"), share=True), Released)


async def test_permits_pass_on_to_the_next_run(temporal_server: TemporalServer) -> None:
    async with serving(
        temporal_server.address, HastyBroker, PermitSlotWorkflow, activities=[owner_closed]
    ) as here:
        pool = Pool(here)
        await pool.try_for("a")
        run = (await pool.permit(0).describe()).run_id
        while len(await pool.chain()) < 3:
            await pool.ask(Renew(pool.key, "a", 30.0))
        assert (await pool.permit(0).describe()).run_id == run
        await pool.permit(0).terminate()
        while not isinstance(found := await pool.ask(Renew(pool.key, "a", 30.0)), Lost):
            await asyncio.sleep(0.1)
        assert found.reason == "revoked"
        last = await pool.try_for("b")
        assert isinstance(last, Granted)
        await pool.ask(Release(pool.key, "b"))
        await pool.until_open(last.slots[0], False)


async def test_it_leaves_no_permit_behind(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, HastyBroker, PermitSlotWorkflow) as here:
        pool = Pool(here)
        await pool.try_for("a", units=2)
        await pool.ask(Release(pool.key, "a"))
        await pool.handle.result()
        assert not await pool.is_open(0)
        assert not await pool.is_open(1)


async def test_too_many_slots_are_refused_with_what_to_do(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here, capacity=5_000)
        found = await pool.try_for("a")
        assert isinstance(found, Failed)
        assert "share=false" in found.detail


async def test_a_broker_that_was_started_without_permits_takes_them_when_asked(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address, *WORKFLOWS) as here:
        pool = Pool(here, capacity=3)
        await pool.ask(pool.acquire("a", capacity=3))
        await pool.take_permit(1)
        assert not await pool.is_open(0)
        found = await pool.ask(pool.acquire("b", capacity=3, queue=False), share=True)
        assert isinstance(found, Granted)
        assert found.slots == (2,)
        await pool.until_open(0, True)
        refused = await pool.ask(pool.acquire("c", capacity=3, queue=False))
        assert isinstance(refused, Refused)
        assert [each.owner for each in refused.holders][-1] == pool.permit(1).id
