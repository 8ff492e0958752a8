"""Workflows and plain Python in one queue, by one broker."""

import asyncio

import pytest
from temporalio.client import WorkflowFailureError

import dibs
from tests.servers.temporal import TemporalServer
from tests.temporal.fair_flows import Holding
from tests.temporal.fair_world import fair_world

pytestmark = [pytest.mark.once]


async def test_plain_python_and_workflows_take_turns(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        url = f"{temporal_server.url}?task_queue={world.queue}"
        async with dibs.connect(url) as client:
            semaphore = client.semaphore(world.resource, capacity=1)
            async with semaphore.acquire() as lease:
                flow = await world.waiting()
                plain = asyncio.create_task(_token(semaphore.acquire(wait=30)))
                await world.until_waiting(2)
                last = await world.waiting(hold=0)
            await world.until_holding(flow)
            await flow.signal(Holding.leave)
            tokens = [
                lease.token,
                (await flow.result()).token,
                await plain,
                (await last.result()).token,
            ]
            assert tokens == sorted(tokens)
            await world.until_free()


async def _token(acquiring: object) -> int:
    async with acquiring as lease:  # type: ignore[attr-defined]
        found: int = lease.token
        return found


async def test_plain_python_revokes_what_a_workflow_holds(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        url = f"{temporal_server.url}?task_queue={world.queue}"
        holder = await world.holding()
        async with dibs.connect(url) as client:
            semaphore = client.semaphore(world.resource, capacity=1)
            (held,) = (await semaphore.status()).holders
            assert held.owner.startswith(f"{holder.id}/")
            assert await client.revoke(world.resource, kind="semaphore", reason="maintenance") == 1
            with pytest.raises(WorkflowFailureError) as failure:
                await holder.result()
            assert "maintenance" in str(failure.value.cause)
            async with semaphore.acquire(wait=30) as lease:
                assert lease.token > held.token


async def test_20_a_lease_released_late_is_nobody_else_s(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        url = f"{temporal_server.url}?task_queue={world.queue}"
        async with dibs.connect(url) as client:
            lease = await client.semaphore(world.resource, 1, ttl="1s", auto_renew=False).acquire()
            next_one = await world.holding()  # once its lease is over
            assert lease.lost
            await lease.release()
            (holder,) = (await world.status()).holders
            assert holder.owner.startswith(next_one.id)
            await next_one.signal(Holding.leave)
            await next_one.result()
