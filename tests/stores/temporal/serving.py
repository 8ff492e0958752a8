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

STARTS = 30.0
"""Seconds within which a worker is there."""


class ThreadedWorker:
    """Serves a task queue until it is stopped."""

    def __init__(self, address: str, queue: str, workflows: Sequence[type] = WORKFLOWS) -> None:
        self.queue = queue
        self._workflows = workflows
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brokers", daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(STARTS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        client = await Client.connect(self._address)
        worker = Worker(
            client,
            task_queue=self.queue,
            workflows=self._workflows,
            activities=ACTIVITIES,
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            while not await pollers(client, self.queue):
                await asyncio.sleep(0.02)
            self._started.set()
            await self._stopping.wait()


@contextmanager
def brokers_for(
    server: TemporalServer, queue: str = "", workflows: Sequence[type] = WORKFLOWS
) -> Generator[str]:
    """A served queue of its own; gives the store's URL."""
    worker = ThreadedWorker(server.address, queue or f"store-{uuid4().hex}", workflows)
    worker.start()
    try:
        yield f"{server.url}?task_queue={worker.queue}"
    finally:
        worker.stop()
