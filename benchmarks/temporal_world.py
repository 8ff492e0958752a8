"""Where the ways to a lock on Temporal are measured: a server for development, and workers."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import dibs
from benchmarks import temporal_contended
from benchmarks.temporal_flows import GUIDE, Ask, Cycles, Holds, Runs, Work
from dibs.temporal import DibsPlugin, TemporalWorker
from tests.servers.redis import RedisServer
from tests.servers.temporal import TemporalServer
from tests.temporal.guide import GuidePermit


class World:
    """A server, a client, and workers on three queues: of permits, of the guide's, and of those who ask."""

    def __init__(self, client: Client, address: str, work: Work) -> None:
        self.client = client
        self.work = work
        self.queue = "asking"
        self.url = f"temporal://{address}/default?task_queue=permits"
        self.store = dibs.connect(self.url)

    def ask(self, way: str) -> Ask:
        """On a resource of its own."""
        return Ask(way, f"bench-{uuid4().hex[:12]}", "guides" if way == GUIDE else "permits")

    async def start(self, kind: Any, *args: Any) -> Any:
        return await self.client.start_workflow(
            kind, args=list(args), id=f"asks-{uuid4()}", task_queue=self.queue
        )

    async def events(self, workflow_id: str) -> list[int]:
        """The types of all events of a workflow's newest run."""
        history = await self.client.get_workflow_handle(workflow_id).fetch_history()
        return [event.event_type for event in history.events]


@asynccontextmanager
async def world(folder: Path) -> AsyncGenerator[World]:
    """Everything started, and stopped at the end."""
    work = Work()
    async with AsyncExitStack() as stack:
        server = stack.enter_context(TemporalServer(folder / "temporal"))
        redis = stack.enter_context(RedisServer(folder / "redis"))
        client = await Client.connect(server.address, plugins=[DibsPlugin(task_queue="permits")])
        made = World(client, server.address, work)
        await stack.enter_async_context(TemporalWorker(client, task_queue="permits"))
        for queue, workflows, activities in (
            ("guides", [GuidePermit], []),
            (
                made.queue,
                [Cycles, Holds, Runs, *temporal_contended.FLOWS],
                work.activities(redis.url),
            ),
        ):
            runner = UnsandboxedWorkflowRunner()  # as ours are served
            worker = Worker(
                client,
                task_queue=queue,
                workflows=workflows,
                activities=activities,
                workflow_runner=runner,
            )
            await stack.enter_async_context(worker)
        await stack.enter_async_context(made.store)
        yield made
