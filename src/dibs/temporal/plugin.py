"""The plugin that sets up a client and its workers: `Client.connect(…, plugins=[DibsPlugin()])`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, override
from weakref import WeakSet

from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig

from dibs.backends.temporal.protocol.queues import task_queue as queue_of
from dibs.config import Duration
from dibs.errors import DibsError
from dibs.temporal.activity.backend import LockBackend
from dibs.temporal.activity.decorator import refuse_locked_workflows
from dibs.temporal.activity.interceptor import WAIT_IN_SLOT, LockInterceptor
from dibs.temporal.worker.beside import ServedBeside
from dibs.temporal.worker.quiet_end import end_quietly
from dibs.temporal.worker.sandbox import passing_ours
from dibs.temporal.worker.served import with_our_activities, with_our_workflows, with_permits


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
