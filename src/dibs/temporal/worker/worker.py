"""The worker of the permit queue, on which permits and brokers run."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self
from uuid import uuid4

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from dibs.config import Duration, seconds
from dibs.errors import DibsError
from dibs.stores.temporal.client import pollers, wait_for_threads_at_exit
from dibs.stores.temporal.errors import explain
from dibs.stores.temporal.ids import task_queue as queue_of
from dibs.stores.temporal.url import TemporalTarget
from dibs.temporal.worker.served import with_our_activities, with_our_workflows

DRAIN = 10.0
"""Seconds that running activities get to finish when the worker is stopped."""

TAKE_OVER = timedelta(seconds=3)
"""After this time, others take over what a killed worker had in its cache. Temporal's own is 10 s."""

_STARTS_AT = 0.1
_LOOKS_AGAIN = 2.0
_LOOKS_EVERY = 2.0
"""Seconds between looks. With the time of a look, the worker notices a lost server within 5 s."""
_PATIENCE = 3.0
_REPORTED = 2
"""Failed looks in a row before `on_change` is called."""
_LATE = 8
"""The same before it was ready at all: some five seconds."""

logger: logging.Logger = logging.getLogger("dibs.temporal")


class TemporalWorker:
    """Serves permits and brokers on a task queue, until it is stopped: `await TemporalWorker(client).run()`.

    The queue is its own (`task_queue`, else TEMPORAL_TASK_QUEUE, else `distributed-lock-tq`), so that no
    application's backlog keeps a lock from being passed on. Any number may run: what one leaves
    half-done another takes over, and while none runs nothing is granted, and nothing is lost. Other
    arguments are those of Temporal's `Worker`, but `drain`, in seconds, is its
    `graceful_shutdown_timeout`; with `workflows=` of your own all run in Temporal's sandbox. Raises
    `ValueError` for an empty queue name.
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
        self.client: Client = client
        self.task_queue: str = queue_of(task_queue)
        self.identity: str = (
            identity or f"dibs@{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:6]}"
        )
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
        """Why it is not ready. None once the server lists it among the pollers of its queue."""
        return self._not_ready

    @property
    def is_ready(self) -> bool:
        """The server lists it among the pollers of its queue, and answered lately."""
        return self._not_ready is None

    def stop(self) -> None:
        """Take no more tasks, finish those that were begun, and have `run` return. May be called again."""
        self._stopping.set()

    async def run(
        self,
        on_ready: Callable[[], object] | None = None,
        on_change: Callable[[str | None], object] | None = None,
    ) -> None:
        """Serve until `stop()` or a cancellation; drain in both cases.

        Calls `on_ready` once, when it is ready, and then `on_change` each time that the server goes away
        (with the reason) or is back (None). Without `on_change` that is logged. Raises `NotConfigured` for
        an unknown namespace, `Forbidden`, `BackendUnavailable`.
        """
        self._not_ready = "it is starting"
        wait_for_threads_at_exit()
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
            raise explain(error, TemporalTarget.of(self.client)) from error

    async def _look(
        self,
        on_ready: Callable[[], object] | None,
        on_change: Callable[[str | None], object],
    ) -> None:
        """Find out whether the server knows us, soon at first and then regularly.

        One failed look can be chance: it makes the worker not ready, but only the second one is reported.
        """
        pause, misses, begun = _STARTS_AT, 0, False
        while True:
            self._not_ready = await self._trouble()
            if self._not_ready is None:
                if not begun:
                    if on_ready is not None:
                        on_ready()
                elif misses >= _REPORTED:
                    on_change(None)
                pause, misses, begun = _LOOKS_EVERY, 0, True
            else:
                misses += 1
                if misses == (_REPORTED if begun else _LATE):
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
        """Serve in the background during the block, which begins when the worker is ready."""
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


OURS = "dibs"


def passing_ours(runner: WorkflowRunner | None) -> WorkflowRunner:
    """The runner. If it has a sandbox, it passes our modules through, instead of a new import per run.

    They keep no state of workflows, and those that do I/O refuse to in workflow code.
    """
    if runner is None:
        runner = SandboxedWorkflowRunner()
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    if OURS in runner.restrictions.passthrough_modules:
        return runner
    return replace(runner, restrictions=runner.restrictions.with_passthrough_modules(OURS))
