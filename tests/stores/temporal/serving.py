"""A worker that runs brokers, in a thread of its own: the tests' own loops come and go."""

import asyncio
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from dibs.stores.temporal.client import pollers
from dibs.temporal.worker.served import ACTIVITIES, WORKFLOWS
from tests.servers.temporal import TemporalServer


@contextmanager
def brokers_for(
    server: TemporalServer, queue: str = "", workflows: Sequence[type] = WORKFLOWS
) -> Generator[str]:
    """Serve a queue, one of its own unless it is named; gives the store's URL."""
    queue = queue or f"store-{uuid4().hex}"
    loop, stopping, is_served = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def serve() -> None:
        client = await Client.connect(server.address)
        worker = Worker(
            client,
            task_queue=queue,
            workflows=workflows,
            activities=ACTIVITIES,
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            while not await pollers(client, queue):
                await asyncio.sleep(0.02)
            is_served.set()
            await stopping.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="brokers")
    thread.daemon = True
    thread.start()
    assert is_served.wait(30), "the worker is not there"
    try:
        yield f"{server.url}?task_queue={queue}"
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()
