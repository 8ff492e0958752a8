"""The plugin that sets up a client and its workers: `Client.connect(…, plugins=[DibsPlugin()])`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, override
from weakref import WeakKeyDictionary, WeakSet

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig

from dibs.config import Duration
from dibs.errors import DibsError
from dibs.stores.temporal.client import wait_for_threads_at_exit
from dibs.stores.temporal.ids import task_queue as queue_of
from dibs.temporal.activity.decorator import LockBackend, refuse_locked_workflows
from dibs.temporal.activity.interceptor import WAIT_IN_SLOT, LockInterceptor
from dibs.temporal.worker.served import with_our_activities, with_our_workflows, with_permits
from dibs.temporal.worker.worker import TemporalWorker, passing_ours


class _SharedWorker:
    """The worker of one queue that several blocks use. The lock is held while it starts or stops."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = asyncio.Lock()
        self.worker: TemporalWorker | None = None

    async def start(self, client: Client, queue: str) -> None:
        """Wait until it is ready. Raises why it cannot be."""
        async with self.lock:
            if self.worker is not None:
                return
            try:
                worker = TemporalWorker(client, task_queue=queue)
            except RuntimeError as error:
                if "multiple workers" in str(error):
                    return
                raise
            await worker.__aenter__()
            self.worker = worker

    async def leave(self) -> None:
        """One user less. The last one lets the worker drain."""
        self.users -= 1
        async with self.lock:
            if not self.users and self.worker is not None:
                worker, self.worker = self.worker, None
                await worker.__aexit__(None, None, None)


_shared: "WeakKeyDictionary[Client, dict[str, _SharedWorker]]" = WeakKeyDictionary()


@asynccontextmanager
async def served_beside(client: Client, queue: str) -> AsyncGenerator[None]:
    """A block in which this process serves permits and brokers.

    Temporal allows one worker per queue and client. So the first block starts it, all wait until it is
    ready, and the last one stops it. A worker that somebody else has started serves as well.
    """
    queues = _shared.setdefault(client, {})
    shared = queues.setdefault(queue, _SharedWorker())
    shared.users += 1

    async def leave() -> None:
        await shared.leave()
        if not shared.users:
            queues.pop(queue, None)

    try:
        await shared.start(client, queue)
        yield
    finally:
        await asyncio.shield(asyncio.create_task(leave()))  # a cancellation lets it drain


class DibsPlugin(SimplePlugin):
    """Sets up workers for Dibs: all of a client, or one (`Worker(…, plugins=[DibsPlugin()])`).

    `@needs_lock` works on each, our modules pass through its sandbox, and our errors fail a workflow instead
    of its task. A worker that runs workflows also runs the permits that they take (`PermitSlotWorkflow`).
    Brokers have a queue of their own (`task_queue`, else TEMPORAL_TASK_QUEUE, else `distributed-lock-tq`),
    so that no application's backlog keeps a lock from being passed on. Run `dibs temporal worker` for
    it, or give `serve=True` to have a worker of that queue run beside each of yours, in its process.
    Given twice, the plugin counts once.

    `application`, `backend` and `wait_in_slot` are for `@needs_lock`: see `LockInterceptor`. Creating a
    worker raises `NotConfigured` if its activities need locks and no store is configured for them.
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
        self.task_queue: str = queue_of(task_queue)
        if not isinstance(serve, bool):
            raise TypeError(f"serve is {serve!r}: give True or False")
        self.serve: bool = serve
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
        """Their interceptors, and ours unless they, or their client, have one already."""
        found = list(given or ())
        if not any(isinstance(each, LockInterceptor) for each in (*found, *inherited)):
            found.append(self._locks)
        return found

    @override
    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        wait_for_threads_at_exit()
        serves = self.serve and worker.task_queue != self.task_queue
        if not serves or worker in _served_beside:
            return await next(worker)
        _served_beside.add(worker)
        async with served_beside(worker.client, self.task_queue):
            await next(worker)


_served_beside: "WeakSet[Worker]" = WeakSet()
"""A worker can have one plugin of ours from its client, and one of its own."""


def _with_our_errors(given: Sequence[type[BaseException]] | None) -> list[type[BaseException]]:
    found = list(given or ())
    return found if DibsError in found else [*found, DibsError]
