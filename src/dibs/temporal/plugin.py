"""The plugin that sets up a client and its workers: `Client.connect(…, plugins=[DibsPlugin()])`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, override
from weakref import WeakKeyDictionary, WeakSet

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig

from dibs.config import Duration
from dibs.errors import DibsError
from dibs.stores.temporal.protocol.queues import task_queue as queue_of
from dibs.temporal.activity.decorator import LockBackend, refuse_locked_workflows
from dibs.temporal.activity.interceptor import WAIT_IN_SLOT, LockInterceptor
from dibs.temporal.worker.quiet_end import end_quietly
from dibs.temporal.worker.sandbox import passing_ours
from dibs.temporal.worker.served import with_our_activities, with_our_workflows, with_permits
from dibs.temporal.worker.worker import TemporalWorker


class ServedBeside:
    """A block in which permits are served in this process.

    Temporal has one worker for each queue and client, so the first to enter starts it, all wait until it is
    ready, and the last to leave stops it. One that others have started by themselves serves as well.
    """

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue

    async def __aenter__(self) -> None:
        running = _running.setdefault(self._client, {})
        while (found := running.get(self._queue)) is not None and found.ending is not None:
            await asyncio.wait({found.ending})
        if found is None:
            found = running[self._queue] = _Shared(self._client, self._queue)
        self._shared = found
        found.users += 1
        try:
            await found.started()
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """Whoever is cancelled meanwhile leaves all the same, and the worker drains."""
        shared = self._shared
        shared.users -= 1
        if not shared.users:
            shared.ending = asyncio.ensure_future(self._end(shared))
            await asyncio.shield(shared.ending)

    async def _end(self, shared: "_Shared") -> None:
        try:
            await shared.stop()
        finally:
            _running[self._client].pop(self._queue, None)


class _Shared:
    """The worker, and how many need it. Nobody's cancellation stops it while another does."""

    def __init__(self, client: Client, queue: str) -> None:
        self.users = 0
        self.ending: asyncio.Future[None] | None = None
        """The last has left: who comes now has to wait for the end."""
        self.worker: TemporalWorker | None = None
        self._starting: asyncio.Future[TemporalWorker] | None = None
        try:
            self.worker = TemporalWorker(client, task_queue=queue)
        except RuntimeError as error:
            if "multiple workers" not in str(error):
                raise

    async def started(self) -> None:
        """Until it is ready. Raises why it can't be."""
        if self.worker is None:
            return
        if self._starting is None:
            self._starting = asyncio.ensure_future(self.worker.__aenter__())
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        """It drains, also where it has not yet begun."""
        starting = self._starting
        if self.worker is None or starting is None:
            return
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        elif not starting.cancelled() and starting.exception() is None:
            await self.worker.__aexit__(None, None, None)


_running: "WeakKeyDictionary[Client, dict[str, _Shared]]" = WeakKeyDictionary()


class DibsPlugin(SimplePlugin):
    """Sets up workers for Dibs: all of a client, or one (`Worker(…, plugins=[DibsPlugin()])`).

    `@needs_lock` works on each, our modules pass through its sandbox, and our errors fail a workflow instead
    of its task. A worker that runs workflows also runs the permits that they take (`PermitSlotWorkflow`).
    Brokers have a queue of their own (`task_queue`, else TEMPORAL_TASK_QUEUE, else `distributed-lock-tq`),
    so that no application's backlog keeps a lock from being passed on. Run `dibs temporal worker` for
    it, or give `serve=True` to have a worker of that queue run beside each of yours, in its process.
    Given twice, the plugin counts once.

    `application`, `backend` and `wait_in_slot` are for `@needs_lock`: see `LockInterceptor`. A worker whose
    activities need locks that nobody has said where to keep isn't made: that raises `NotConfigured`.
    """

    def __init__(
        self,
        *,
        task_queue: str | None = None,
        serve: bool = False,
        application: str | None = None,
        backend: LockBackend = None,
        wait_in_slot: Duration | None = WAIT_IN_SLOT,
    ) -> None:
        self.task_queue = queue_of(task_queue)
        if not isinstance(serve, bool):
            raise TypeError(f"serve is {serve!r}: give True or False")
        self.serve = serve
        self._locks = LockInterceptor(
            application=application, backend=backend, wait_in_slot=wait_in_slot
        )
        super().__init__(
            "dibs.DibsPlugin",
            workflow_runner=passing_ours,
            workflow_failure_exception_types=_with_our_errors,
        )

    @override
    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        config = super().configure_worker(config)
        inherited = config["client"].config(active_config=True)["interceptors"]
        config["interceptors"] = self._with_ours(config.get("interceptors"), inherited)
        locks = [each for each in config["interceptors"] if isinstance(each, LockInterceptor)]
        for each in locks:
            each.check(config.get("activities") or ())
        refuse_locked_workflows(config.get("workflows") or ())
        if config.get("task_queue") == self.task_queue:
            config["workflows"] = with_our_workflows(config.get("workflows"))
            config["activities"] = with_our_activities(config.get("activities"))
        elif config.get("workflows"):
            config["workflows"] = with_permits(config["workflows"])
        return config

    @override
    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        config = super().configure_replayer(config)
        config["interceptors"] = self._with_ours(config.get("interceptors"))
        config["workflows"] = with_our_workflows(config.get("workflows"))
        return config

    def _with_ours(self, given: Sequence[Any] | None, inherited: Sequence[Any] = ()) -> list[Any]:
        """Their interceptors, and ours unless one like it is among them, or among their client's."""
        found = list(given or ())
        if not any(isinstance(each, LockInterceptor) for each in (*found, *inherited)):
            found.append(self._locks)
        return found

    @override
    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        end_quietly()
        if worker.task_queue == self.task_queue:
            await next(worker)
        elif self.serve and _first(worker, _served_beside):
            async with ServedBeside(worker.client, self.task_queue):
                await next(worker)
        else:
            await next(worker)


_served_beside: "WeakSet[Worker]" = WeakSet()
"""A worker may have a plugin of ours from its client, and another one of its own."""


def _first(worker: Worker, among: "WeakSet[Worker]") -> bool:
    known = worker in among
    among.add(worker)
    return not known


def _with_our_errors(given: Sequence[type[BaseException]] | None) -> list[type[BaseException]]:
    found = list(given or ())
    return found if DibsError in found else [*found, DibsError]
