"""Locks for Temporal: in workflows, for activities, and the worker that serves them.

* `Semaphore` and `Lock` are for workflow code; what they give is a `Permit`.
* `needs_lock` has an activity hold a lease of any store; `current_lock` is that lease.
* `LeaseholdPlugin` sets up a client's workers for both.
* `TemporalWorker` serves permits and brokers (`PermitSlotWorkflow`, `LeaseholdBroker`, `LeaseholdMailbox`),
  as does `leasehold temporal worker`; `serve` is that as a coroutine.
* `Handoff` is what a permit's `detach()` gives; what goes wrong is a `LeaseholdError`, as everywhere.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.backends.temporal.broker.mailbox import LeaseholdMailbox as LeaseholdMailbox
    from leasehold.backends.temporal.broker.workflow import LeaseholdBroker as LeaseholdBroker
    from leasehold.errors import AcquireTimeout as AcquireTimeout
    from leasehold.errors import BackendUnavailable as BackendUnavailable
    from leasehold.errors import LeaseholdError as LeaseholdError
    from leasehold.errors import LeaseLost as LeaseLost
    from leasehold.errors import NotHeld as NotHeld
    from leasehold.errors import Reentrant as Reentrant
    from leasehold.temporal.activity.decorator import needs_lock as needs_lock
    from leasehold.temporal.activity.interceptor import LockInterceptor as LockInterceptor
    from leasehold.temporal.activity.lock import ActivityLock as ActivityLock
    from leasehold.temporal.activity.lock import current_lock as current_lock
    from leasehold.temporal.failures import Misused as Misused
    from leasehold.temporal.lock import Lock as Lock
    from leasehold.temporal.permits.handoff import Handoff as Handoff
    from leasehold.temporal.permits.permit import Permit as Permit
    from leasehold.temporal.plugin import LeaseholdPlugin as LeaseholdPlugin
    from leasehold.temporal.semaphore import Semaphore as Semaphore
    from leasehold.temporal.slot.permit_workflow import PermitSlotWorkflow as PermitSlotWorkflow
    from leasehold.temporal.worker.serving import serve as serve
    from leasehold.temporal.worker.worker import TemporalWorker as TemporalWorker

    __all__: list[str]
else:
    from leasehold.lazy import from_modules

    # imported when asked for: the command line must not load Temporal, nor a workflow the worker
    __all__, _get, __dir__ = from_modules(
        __name__,
        {
            "leasehold.backends.temporal.broker.workflow": ("LeaseholdBroker",),
            "leasehold.backends.temporal.broker.mailbox": ("LeaseholdMailbox",),
            "leasehold.errors": (
                "AcquireTimeout",
                "BackendUnavailable",
                "LeaseLost",
                "LeaseholdError",
                "NotHeld",
                "Reentrant",
            ),
            "leasehold.temporal.activity.lock": ("ActivityLock", "current_lock"),
            "leasehold.temporal.failures": ("Misused",),
            "leasehold.temporal.permits.handoff": ("Handoff",),
            "leasehold.temporal.activity.interceptor": ("LockInterceptor",),
            "leasehold.temporal.lock": ("Lock",),
            "leasehold.temporal.activity.decorator": ("needs_lock",),
            "leasehold.temporal.permits.permit": ("Permit",),
            "leasehold.temporal.slot.permit_workflow": ("PermitSlotWorkflow",),
            "leasehold.temporal.plugin": ("LeaseholdPlugin",),
            "leasehold.temporal.semaphore": ("Semaphore",),
            "leasehold.temporal.worker.serving": ("serve",),
            "leasehold.temporal.worker.worker": ("TemporalWorker",),
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
                "leasehold.temporal needs the package temporalio: pip install 'leasehold[temporal]'",
                name=error.name,
            ) from error
