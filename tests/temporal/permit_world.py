"""Workers for permits of both modes and of the guide, and looks at who holds them.

As a program (`python -m tests.temporal.permit_world HOST:PORT`): holders and their permits in Temporal's
sandbox with nothing passed through, replayed for each task. Under pytest each import in a sandbox takes
ten times as long.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from dibs.model import Status
from dibs.temporal import DibsBroker, PermitSlotWorkflow
from dibs.temporal.slots.workflow import PermitStatus
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import Brokered
from tests.temporal.guide import GuidePermit
from tests.temporal.permit_flows import FLOWS, Held, Holding, Relay, Wish
from tests.temporal.workers import (
    connected,
    count,
    poll,
    replay,
    status_of,
    unique,
    worker,
)

SERVED = (DibsBroker, PermitSlotWorkflow, *FLOWS)

type Handle = WorkflowHandle[Any, Any]


class Work:
    """Activities that note when they run."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.spans: dict[str, tuple[float, float]] = {}

    @activity.defn
    async def busy(self, who: str, seconds: float) -> None:
        """Works on when it is cancelled, as a thread can."""
        await asyncio.shield(self._work(who, seconds))

    async def _work(self, who: str, seconds: float) -> None:
        began = time.time()
        self.begun.add(who)
        await asyncio.sleep(seconds)
        self.spans[who] = (began, time.time())


def overlap(*spans: tuple[float, float]) -> float:
    """The longest time, in seconds, during which two of them went on at once."""
    return max(first[1] - second[0] for first, second in pairwise(sorted(spans)))


def spans_of(helds: Iterable[Held]) -> list[tuple[float, float]]:
    return [(each.since, each.until) for each in helds]


@dataclass
class World:
    client: Client
    queue: str
    """Of holders, brokers and permits."""
    guides: str
    """Of the guide's permits."""
    work: Work = field(default_factory=Work)

    def wish(self, mode: str = "fair", **more: Any) -> Wish:
        """For a resource of its own unless one is given."""
        return Wish(**{"resource": unique("resource"), "queue": self.queue, "mode": mode, **more})

    async def start(self, flow: type, *args: Any, result: type | None = None) -> Handle:
        return await self.client.start_workflow(
            flow.__name__,
            args=list(args),
            id=unique("flow"),
            task_queue=self.queue,
            result_type=result,
        )

    async def run(self, flow: type, *args: Any, result: type | None = None) -> Any:
        async with asyncio.timeout(60):
            return await (await self.start(flow, *args, result=result)).result()

    async def hold(self, wish: Wish) -> "WorkflowHandle[Any, Held]":
        """A workflow that wants it."""
        return await self.start(Holding, wish, result=Held)

    async def holding(self, wish: Wish, flow: type = Holding) -> "WorkflowHandle[Any, Held]":
        """A workflow that holds it."""
        handle = await self.start(flow, wish, result=Held)
        await self.until_holding(handle)
        return handle

    async def until_holding(self, handle: Handle) -> None:
        await poll(lambda: handle.query("where"), lambda state: state == "holds")

    def latest(self, relay: Handle) -> Handle:
        """The newest run of a workflow that continues as new."""
        return self.client.get_workflow_handle(relay.id)

    async def hand_over(self, relay: Handle) -> None:
        """Have the newest run continue as new, and wait until the next one holds."""
        latest = self.latest(relay)
        before = (await latest.describe()).run_id
        await latest.signal("leave")
        await poll(latest.describe, lambda about: about.run_id != before)
        await self.until_holding(latest)

    async def waiting(self, wish: Wish) -> "WorkflowHandle[Any, Held]":
        """A workflow that waits for it."""
        if wish.mode != "fair":
            handle = await self.hold(wish)
            await self.until_tried(handle)
            return handle
        before = (await self.status(wish)).waiting
        handle = await self.hold(wish)
        await self.until_waiting(wish, before + 1)
        return handle

    async def until_tried(self, waiter: Handle, times: int = 1) -> int:
        """Wait until a waiter of slot mode has found all slots taken so often."""
        kind = "START_CHILD_WORKFLOW_EXECUTION_FAILED"
        history = await poll(waiter.fetch_history, lambda found: count(found)[kind] >= times)
        return count(history)[kind]

    def broker(self, wish: Wish) -> Brokered:
        return Brokered(self.client, wish.queue, f"semaphore:{wish.resource}".encode())

    async def status(self, wish: Wish) -> Status:
        """Of a broker."""
        return await self.broker(wish).status()

    async def until_waiting(self, wish: Wish, number: int) -> None:
        await poll(lambda: self.status(wish), lambda status: status.waiting == number)

    def permit(self, wish: Wish) -> WorkflowHandle[Any, str]:
        """The newest permit of slot 0."""
        return self.client.get_workflow_handle(f"permit:{wish.resource}:0", result_type=str)

    async def ends_at(self, wish: Wish) -> float:
        """When the lease of the only holder ends, in seconds since 1970."""
        if wish.mode == "fair":
            (holder,) = (await self.status(wish)).holders
            return time.time() + holder.expires_in
        status: PermitStatus = await self.permit(wish).query("status", result_type=PermitStatus)
        return status.deadline

    async def until_free(self, wish: Wish) -> None:
        """Wait until nobody holds it and nobody waits for it."""

        async def free() -> bool:
            if wish.mode != "fair":
                return await status_of(self.client, self.permit(wish).id) != "RUNNING"
            status = await self.status(wish)
            return not status.holders and not status.waiting

        await poll(free)


@asynccontextmanager
async def permit_world(server: TemporalServer, **more: Any) -> AsyncGenerator[World]:
    """Workers for the block; without a sandbox, in which each workflow imports everything anew."""
    client, work = await connected(server), Work()
    ours: dict[str, Any] = {"sandboxed": False, "activities": [work.busy, owner_closed], **more}
    async with (
        worker(client, GuidePermit, sandboxed=False) as guides,
        worker(client, *SERVED, **ours) as queue,
    ):
        yield World(client, queue, guides, work)


async def main(address: str) -> None:
    client = await Client.connect(address)
    os.environ["TEMPORAL_TASK_QUEUE"] = "another"  # of a worker that replays
    for mode, cached in (("slot", False), ("fair", True)):
        async with worker(client, DibsBroker, PermitSlotWorkflow, Relay, cached=cached) as queue:
            wish = Wish(unique("resource"), queue, mode, runs=2, hold=0.05, acquire={"ttl": 300.0})
            relay = await client.start_workflow(
                Relay.run, wish, id=unique("relay"), task_queue=queue
            )
            held = await relay.result()
            for run in (relay.first_execution_run_id, None):
                handle = client.get_workflow_handle(relay.id, run_id=run)
                await replay(await handle.fetch_history(), Relay, sandboxed=True)
            if mode == "slot":
                permit = client.get_workflow_handle(f"permit:{wish.resource}:0", run_id=held.run_id)
                await replay(await permit.fetch_history(), PermitSlotWorkflow, sandboxed=True)
                print(await permit.result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # Temporal's threads may crash an interpreter that is being taken apart
