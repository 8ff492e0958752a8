"""A worker with brokers and their callers, and one resource that they contend for."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WorkflowHandle

from dibs.model import Inspect, Status
from dibs.temporal.slots.workflow import PermitSlotWorkflow
from dibs.temporal.worker.served import owner_closed
from dibs.temporal.worker.worker import passing_ours
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import SERVED, Brokered
from tests.temporal.fair_flows import FLOWS, Held, Holding, Wish
from tests.temporal.workers import connected, unique, until, worker

WORKFLOWS = [*SERVED, PermitSlotWorkflow, *FLOWS]

type Handle = WorkflowHandle[Any, Any]


@dataclass
class World:
    """One test's queue and resource."""

    client: Client
    queue: str
    resource: str
    _runs: dict[str, str | None] = field(default_factory=dict[str, str | None])

    @property
    def broker(self) -> Brokered:
        """The broker of the resource, as seen from outside."""
        return Brokered(self.client, self.queue, f"semaphore:{self.resource}".encode())

    async def status(self) -> Status:
        """Who holds and who waits."""
        return await self.broker.status()

    async def start(self, flow: Any, *args: Any, **more: Any) -> Handle:
        """A workflow of that class."""
        handle: Handle = await self.client.start_workflow(
            flow, args=args, id=unique("flow"), task_queue=self.queue, **more
        )
        return handle

    async def run(self, flow: Any, *args: Any, **more: Any) -> Any:
        """What comes of it."""
        async with asyncio.timeout(60):
            return await (await self.start(flow, *args, **more)).result()

    def wish(self, **more: Any) -> Wish:
        """For the resource."""
        return Wish(self.resource, **more)

    async def holding(self, **more: Any) -> "WorkflowHandle[Holding, Held]":
        """A workflow that holds it."""
        handle = await self.start(Holding.run, self.wish(**more))
        await self.until_holding(handle)
        return handle

    async def until_holding(self, handle: Handle) -> None:
        """Until a workflow, in whichever run, has what it wants."""
        latest = self.client.get_workflow_handle(handle.id)

        async def holds() -> bool:
            return bool(await latest.query("where") == "holds")

        await until(holds)

    async def until_next_run_holds(self, handle: Handle) -> None:
        """Until a workflow has continued as new, and its new run holds."""
        latest = self.client.get_workflow_handle(handle.id)
        before = self._runs.get(handle.id, handle.first_execution_run_id)

        async def continued() -> bool:
            return (await latest.describe()).run_id != before

        await until(continued)
        self._runs[handle.id] = (await latest.describe()).run_id
        await self.until_holding(handle)

    async def broker_time(self) -> float:
        """The broker's clock, which is the server's."""
        return (await self.broker.call(Inspect(self.broker.key))).now

    async def waiting(self, **more: Any) -> "WorkflowHandle[Holding, Held]":
        """A workflow that is the last in the queue."""
        before = (await self.status()).waiting
        handle = await self.start(Holding.run, self.wish(**more))
        await self.until_waiting(before + 1)
        return handle

    async def until_waiting(self, count: int) -> None:
        """Until so many wait."""

        async def so_many() -> bool:
            return (await self.status()).waiting == count

        await until(so_many, every=0.02)

    async def until_free(self) -> None:
        """Until nobody holds it and nobody waits."""

        async def free() -> bool:
            status = await self.status()
            return not status.holders and not status.waiting

        await until(free, every=0.02)


@asynccontextmanager
async def fair_world(server: TemporalServer, **more: Any) -> AsyncGenerator[World]:
    """For one test."""
    client = await connected(server)
    more.setdefault("workflow_runner", passing_ours(None))  # each run taking us in anew takes long
    more.setdefault("activities", [owner_closed])
    async with worker(client, *WORKFLOWS, **more) as queue:
        yield World(client, queue, unique("resource"))
