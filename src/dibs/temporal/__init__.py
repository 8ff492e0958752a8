"""Locks for Temporal: in workflows, for activities, and the worker that serves them.

* `Semaphore` and `Lock` are for workflow code; their `acquire()` gives a `Permit`.
* `needs_lock` runs an activity under a lease of any store; `current_lock` is that lease.
* `DibsPlugin` sets up a client's workers for both.
* `TemporalWorker` serves permits and brokers (`PermitSlotWorkflow`, `DibsBroker`), as does
  `dibs temporal worker`; `serve` is that as a coroutine.
* `permit_workflow_id`, `connect_temporal_client` and the constants have the names of Temporal's guide to
  distributed locks.
* `Handoff` is the result of a permit's `detach()`. All errors are a `DibsError`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.errors import AcquireTimeout as AcquireTimeout
    from dibs.errors import BackendUnavailable as BackendUnavailable
    from dibs.errors import DibsError as DibsError
    from dibs.errors import LeaseLost as LeaseLost
    from dibs.errors import NotHeld as NotHeld
    from dibs.errors import Reentrant as Reentrant
    from dibs.stores.temporal.ids import permit_workflow_id as permit_workflow_id
    from dibs.temporal.activity.decorator import needs_lock as needs_lock
    from dibs.temporal.activity.interceptor import LockInterceptor as LockInterceptor
    from dibs.temporal.activity.lock import ActivityLock as ActivityLock
    from dibs.temporal.activity.lock import current_lock as current_lock
    from dibs.temporal.broker.workflow import DibsBroker as DibsBroker
    from dibs.temporal.errors import Misused as Misused
    from dibs.temporal.options import DEFAULT_BACKOFF as DEFAULT_BACKOFF
    from dibs.temporal.options import DEFAULT_LEASE as DEFAULT_LEASE
    from dibs.temporal.options import MAX_BACKOFF as MAX_BACKOFF
    from dibs.temporal.permit import Handoff as Handoff
    from dibs.temporal.permit import Permit as Permit
    from dibs.temporal.plugin import DibsPlugin as DibsPlugin
    from dibs.temporal.semaphore import Lock as Lock
    from dibs.temporal.semaphore import Semaphore as Semaphore
    from dibs.temporal.slots.workflow import PermitSlotInput as PermitSlotInput
    from dibs.temporal.slots.workflow import PermitSlotWorkflow as PermitSlotWorkflow
    from dibs.temporal.worker.serve import TEMPORAL_TASK_QUEUE as TEMPORAL_TASK_QUEUE
    from dibs.temporal.worker.serve import connect_temporal_client as connect_temporal_client
    from dibs.temporal.worker.serve import serve as serve
    from dibs.temporal.worker.worker import TemporalWorker as TemporalWorker

    __all__: list[str]
else:
    from dibs.lazy import from_modules

    # imported on first use: the command line must not load Temporal, nor a workflow the worker
    __all__, _get, __dir__ = from_modules(
        __name__,
        {
            "dibs.temporal.broker.workflow": ("DibsBroker",),
            "dibs.errors": (
                "AcquireTimeout",
                "BackendUnavailable",
                "LeaseLost",
                "DibsError",
                "NotHeld",
                "Reentrant",
            ),
            "dibs.temporal.activity.lock": ("ActivityLock", "current_lock"),
            "dibs.stores.temporal.ids": ("permit_workflow_id",),
            "dibs.temporal.options": ("DEFAULT_BACKOFF", "DEFAULT_LEASE", "MAX_BACKOFF"),
            "dibs.temporal.errors": ("Misused",),
            "dibs.temporal.activity.interceptor": ("LockInterceptor",),
            "dibs.temporal.activity.decorator": ("needs_lock",),
            "dibs.temporal.permit": ("Handoff", "Permit"),
            "dibs.temporal.slots.workflow": ("PermitSlotInput", "PermitSlotWorkflow"),
            "dibs.temporal.plugin": ("DibsPlugin",),
            "dibs.temporal.semaphore": ("Lock", "Semaphore"),
            "dibs.temporal.worker.serve": (
                "TEMPORAL_TASK_QUEUE",
                "connect_temporal_client",
                "serve",
            ),
            "dibs.temporal.worker.worker": ("TemporalWorker",),
        },
    )
    del from_modules

    def __getattr__(name: str) -> Any:
        try:
            return _get(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "temporalio":
                raise
            raise ModuleNotFoundError(
                "dibs.temporal needs the package temporalio: pip install 'dibs[temporal]'",
                name=error.name,
            ) from error
