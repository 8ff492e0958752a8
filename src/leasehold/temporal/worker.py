"""The worker of the permit queue: what permits, brokers and mailboxes run on."""

import asyncio
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self
from uuid import uuid4

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from leasehold.backends.temporal.serving import pollers
from leasehold.config import Duration, seconds
from leasehold.errors import LeaseholdError
from leasehold.temporal.defaults import task_queue as queue_of
from leasehold.temporal.joining import explain_fatal
from leasehold.temporal.served import with_our_activities, with_our_workflows

DRAIN = 10.0
"""So long an activity that runs when the worker is stopped may go on, in seconds."""

TAKE_OVER = timedelta(seconds=3)
"""What a worker that was killed had in its cache is another's after so long; Temporal's own is 10 s."""

_STARTS_AT = 0.1
_LOOKS_AGAIN = 2.0
_LOOKS_EVERY = 15.0
_PATIENCE = 3.0


class TemporalWorker:
    """Serves permits and brokers on a task queue, until it is stopped: `await TemporalWorker(client).run()`.

    The queue is its own (`task_queue`, else TEMPORAL_TASK_QUEUE, else `distributed-lock-tq`), so that no
    application's backlog keeps a lock from being passed on. Any number may run: what one leaves
    half-done another takes over, and while none runs nothing is granted, and nothing is lost. Other
    arguments are those of Temporal's `Worker`. `drain` is in seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str | None = None,
        drain: Duration = DRAIN,
        identity: str | None = None,
        **options: Any,
    ) -> None:
        self.client = client
        self.task_queue = queue_of(task_queue)
        self.identity = (
            identity or f"leasehold@{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:6]}"
        )
        self.not_ready: str | None = "it has not started"
        """Why it can't be relied on; None once the server has it among those who poll."""
        self._stopping = asyncio.Event()
        # Ours do nothing that the sandbox is there to catch, and each run in it costs milliseconds.
        options.setdefault("workflow_runner", UnsandboxedWorkflowRunner())
        options.setdefault("sticky_queue_schedule_to_start_timeout", TAKE_OVER)
        options["workflows"] = with_our_workflows(options.get("workflows"))
        options["activities"] = with_our_activities(options.get("activities"))
        options["graceful_shutdown_timeout"] = timedelta(seconds=seconds(drain, "drain"))
        self._worker = Worker(client, task_queue=self.task_queue, identity=self.identity, **options)

    @property
    def is_ready(self) -> bool:
        """The server has it among those who poll the queue, and answered lately."""
        return self.not_ready is None

    def stop(self) -> None:
        """Take no more tasks, finish those that were begun, and have `run` return. May be called again."""
        self._stopping.set()

    async def run(self, on_ready: Callable[[], object] | None = None) -> None:
        """Serve until `stop()`, or until it is cancelled; drains in both cases.

        `on_ready` is called once, when the server has it among those who poll. Raises `NotConfigured`
        for a namespace that isn't there, `Forbidden`, `BackendUnavailable`.
        """
        self.not_ready = "it is starting"
        running = asyncio.create_task(self._worker.run())
        looking = asyncio.create_task(self._look(on_ready))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
            stopping.cancel()
            self.not_ready = "it is draining"
            await self._end(running)
            self.not_ready = "it has stopped"

    async def _end(self, running: "asyncio.Task[None]") -> None:
        try:
            if not running.done():
                await self._worker.shutdown()
            await running
        except (RuntimeError, RPCError) as error:
            raise explain_fatal(error, self.client) from error

    async def _look(self, on_ready: Callable[[], object] | None) -> None:
        """Find out whether the server knows us, soon at first and then now and again."""
        pause = _STARTS_AT
        while True:
            self.not_ready = await self._trouble()
            if self.not_ready is None:
                pause = _LOOKS_EVERY
                if on_ready is not None:
                    on_ready()
                    on_ready = None
            else:
                pause = min(pause * 1.5, _LOOKS_AGAIN)
            await asyncio.sleep(pause)

    async def _trouble(self) -> str | None:
        try:
            async with asyncio.timeout(_PATIENCE):
                known = await pollers(self.client, self.task_queue)
        except LeaseholdError as error:
            return str(error)
        except TimeoutError:
            return f"the server does not answer within {_PATIENCE:g} s"
        if self.identity not in known:
            return f"the server has not seen it poll {self.task_queue!r} yet"
        return None

    async def __aenter__(self) -> Self:
        """Serve in the background, once it is ready, for as long as the block."""
        ready = asyncio.Event()
        self._background = asyncio.create_task(self.run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({self._background, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if self._background.done():
                await self._background
        except BaseException:
            self.stop()
            raise
        finally:
            waiting.cancel()
        return self

    async def __aexit__(self, *about: object) -> None:
        self.stop()
        await self._background
