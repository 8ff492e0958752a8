"""The worker of the permit queue: what permits and brokers run on."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self
from uuid import uuid4

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from dibs.config import Duration, seconds
from dibs.errors import DibsError
from dibs.stores.temporal.client import pollers
from dibs.stores.temporal.protocol.queues import task_queue as queue_of
from dibs.temporal.worker.joining import explain_fatal
from dibs.temporal.worker.quiet_end import end_quietly
from dibs.temporal.worker.sandbox import passing_ours
from dibs.temporal.worker.served import with_our_activities, with_our_workflows

DRAIN = 10.0
"""So long an activity that runs when the worker is stopped may go on, in seconds."""

TAKE_OVER = timedelta(seconds=3)
"""What a worker that was killed had in its cache is another's after so long; Temporal's own is 10 s."""

_STARTS_AT = 0.1
_LOOKS_AGAIN = 2.0
_LOOKS_EVERY = 2.0
"""With what a look may take it knows within five seconds that its server is away."""
_PATIENCE = 3.0
_SPOKEN_OF = 2
_LATE = 8
"""So many looks take some five seconds at first."""

logger = logging.getLogger("dibs.temporal")


class TemporalWorker:
    """Serves permits and brokers on a task queue, until it is stopped: `await TemporalWorker(client).run()`.

    The queue is its own (`task_queue`, else TEMPORAL_TASK_QUEUE, else `distributed-lock-tq`), so that no
    application's backlog keeps a lock from being passed on. Any number may run: what one leaves
    half-done another takes over, and while none runs nothing is granted, and nothing is lost. Other
    arguments are those of Temporal's `Worker`, but `drain`, in seconds, is its
    `graceful_shutdown_timeout`; with `workflows=` of your own all run in Temporal's sandbox. Raises
    `ValueError` for a queue that is no name.
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
        self.identity = identity or f"dibs@{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:6]}"
        self._not_ready: str | None = "it has not started"
        self._stopping = asyncio.Event()
        if "graceful_shutdown_timeout" in options:
            raise TypeError("TemporalWorker takes no graceful_shutdown_timeout=: say drain=")
        # Ours do nothing that the sandbox is there to catch, and each run in it costs milliseconds.
        options.setdefault(
            "workflow_runner",
            passing_ours(None) if options.get("workflows") else UnsandboxedWorkflowRunner(),
        )
        options.setdefault("sticky_queue_schedule_to_start_timeout", TAKE_OVER)
        options["workflows"] = with_our_workflows(options.get("workflows"))
        options["activities"] = with_our_activities(options.get("activities"))
        options["graceful_shutdown_timeout"] = timedelta(seconds=seconds(drain, "drain"))
        self._worker = Worker(client, task_queue=self.task_queue, identity=self.identity, **options)

    @property
    def not_ready(self) -> str | None:
        """Why it can't be relied on; None once the server has it among those who poll."""
        return self._not_ready

    @property
    def is_ready(self) -> bool:
        """The server has it among those who poll the queue, and answered lately."""
        return self._not_ready is None

    def stop(self) -> None:
        """Take no more tasks, finish those that were begun, and have `run` return. May be called again."""
        self._stopping.set()

    async def run(
        self,
        on_ready: Callable[[], object] | None = None,
        on_change: Callable[[str | None], object] | None = None,
    ) -> None:
        """Serve until `stop()`, or until it is cancelled; drains in both cases.

        `on_ready` is called once, when the server has it among those who poll; after that `on_change` each
        time that the server goes away (with what is wrong) or is back (None), else that is logged.
        Raises `NotConfigured` for a namespace that isn't there, `Forbidden`, `BackendUnavailable`.
        """
        self._not_ready = "it is starting"
        end_quietly()
        running = asyncio.create_task(self._worker.run())
        looking = asyncio.create_task(self._look(on_ready, on_change or self._log_change))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
            stopping.cancel()
            self._not_ready = "it is draining"
            await self._end(running)
            self._not_ready = "it has stopped"

    async def _end(self, running: "asyncio.Task[None]") -> None:
        try:
            if not running.done():
                await self._worker.shutdown()
            await running
        except (RuntimeError, RPCError) as error:
            raise explain_fatal(error, self.client) from error

    async def _look(
        self,
        on_ready: Callable[[], object] | None,
        on_change: Callable[[str | None], object],
    ) -> None:
        """Find out whether the server knows us, soon at first and then now and again.

        One look in vain may be chance: it makes us not ready, and only a second one is spoken of.
        """
        pause, misses, begun = _STARTS_AT, 0, False
        while True:
            self._not_ready = await self._trouble()
            if self._not_ready is None:
                if not begun:
                    if on_ready is not None:
                        on_ready()
                elif misses >= _SPOKEN_OF:
                    on_change(None)
                pause, misses, begun = _LOOKS_EVERY, 0, True
            else:
                misses += 1
                if misses == (_SPOKEN_OF if begun else _LATE):
                    on_change(self._not_ready)
                pause = min(pause * 1.5, _LOOKS_AGAIN)
            await asyncio.sleep(pause)

    def _log_change(self, trouble: str | None) -> None:
        if trouble is None:
            logger.warning("the worker of %r is ready again", self.task_queue)
        else:
            logger.warning("the worker of %r is not ready: %s", self.task_queue, trouble)

    async def _trouble(self) -> str | None:
        try:
            async with asyncio.timeout(_PATIENCE):
                known = await pollers(self.client, self.task_queue)
        except DibsError as error:
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
            await asyncio.wait({self._background})
            raise
        finally:
            waiting.cancel()
        return self

    async def __aexit__(self, *about: object) -> None:
        self.stop()
        await self._background
