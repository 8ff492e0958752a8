"""Locks for Temporal: in workflows, for activities, and the worker that serves them.

* `Semaphore` and `Lock` are for workflow code; what they give is a `Permit`.
* `needs_lock` has an activity hold a lease of any store; `current_lock` is that lease.
* `DibsPlugin` sets up a client's workers for both.
* `TemporalWorker` serves permits and brokers (`PermitSlotWorkflow`, `DibsBroker`), as does
  `dibs temporal worker`; `serve` is that as a coroutine.
* `permit_workflow_id`, `connect_temporal_client` and the constants are what Temporal's guide to distributed
  locks calls so.
* `Handoff` is what a permit's `detach()` gives; what goes wrong is a `DibsError`, as everywhere.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.errors import AcquireTimeout as AcquireTimeout
    from dibs.errors import BackendUnavailable as BackendUnavailable
    from dibs.errors import DibsError as DibsError
    from dibs.errors import LeaseLost as LeaseLost
    from dibs.errors import NotHeld as NotHeld
    from dibs.errors import Reentrant as Reentrant
    from dibs.stores.temporal.protocol.ids import permit_workflow_id as permit_workflow_id
    from dibs.stores.temporal.protocol.permits import PermitSlotInput as PermitSlotInput
    from dibs.temporal.activity.decorator import needs_lock as needs_lock
    from dibs.temporal.activity.interceptor import LockInterceptor as LockInterceptor
    from dibs.temporal.activity.lock import ActivityLock as ActivityLock
    from dibs.temporal.activity.lock import current_lock as current_lock
    from dibs.temporal.broker.workflow import DibsBroker as DibsBroker
    from dibs.temporal.defaults import DEFAULT_BACKOFF as DEFAULT_BACKOFF
    from dibs.temporal.defaults import DEFAULT_LEASE as DEFAULT_LEASE
    from dibs.temporal.defaults import MAX_BACKOFF as MAX_BACKOFF
    from dibs.temporal.failures import Misused as Misused
    from dibs.temporal.permits.permit import Handoff as Handoff
    from dibs.temporal.permits.permit import Permit as Permit
    from dibs.temporal.plugin import DibsPlugin as DibsPlugin
    from dibs.temporal.semaphore import Lock as Lock
    from dibs.temporal.semaphore import Semaphore as Semaphore
    from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow as PermitSlotWorkflow
    from dibs.temporal.worker.joining import TEMPORAL_TASK_QUEUE as TEMPORAL_TASK_QUEUE
    from dibs.temporal.worker.joining import connect_temporal_client as connect_temporal_client
    from dibs.temporal.worker.serving import serve as serve
    from dibs.temporal.worker.worker import TemporalWorker as TemporalWorker

    __all__: list[str]
else:
    from dibs.lazy import from_modules

    # imported when asked for: the command line must not load Temporal, nor a workflow the worker
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
            "dibs.stores.temporal.protocol.permits": ("PermitSlotInput",),
            "dibs.stores.temporal.protocol.ids": ("permit_workflow_id",),
            "dibs.temporal.defaults": ("DEFAULT_BACKOFF", "DEFAULT_LEASE", "MAX_BACKOFF"),
            "dibs.temporal.worker.joining": ("TEMPORAL_TASK_QUEUE", "connect_temporal_client"),
            "dibs.temporal.failures": ("Misused",),
            "dibs.temporal.activity.interceptor": ("LockInterceptor",),
            "dibs.temporal.activity.decorator": ("needs_lock",),
            "dibs.temporal.permits.permit": ("Handoff", "Permit"),
            "dibs.temporal.slot.permit_workflow": ("PermitSlotWorkflow",),
            "dibs.temporal.plugin": ("DibsPlugin",),
            "dibs.temporal.semaphore": ("Lock", "Semaphore"),
            "dibs.temporal.worker.serving": ("serve",),
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
