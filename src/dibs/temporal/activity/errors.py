"""Errors of a decorated activity, and whether Temporal retries them."""

from datetime import timedelta
from random import uniform

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from dibs.errors import (
    AcquireTimeout,
    BackendUnavailable,
    DibsError,
    InvalidName,
    InvalidRequest,
    LeaseLost,
    UnsafeTiming,
)

NOT_INSTALLED = "LockNotInstalled"
NOT_HELD = "LockNotHeld"
WAITING = "WaitingForLock"

AWAY = timedelta(seconds=1)
"""How long a waiting activity leaves its worker's slot to others. Its queue position outlasts that."""

_FOR_GOOD = (AcquireTimeout, InvalidName, InvalidRequest, UnsafeTiming)


def not_installed(activity: str) -> ApplicationError:
    """The activity would run without its lock."""
    return ApplicationError(
        f"{activity} needs a lock, and nothing on this worker takes it: install DibsPlugin, or "
        "LockInterceptor, with `Client.connect(..., plugins=[DibsPlugin()])`. A test that wants "
        f"the bare function calls {activity.rpartition('.')[2]}.__wrapped__",
        type=NOT_INSTALLED,
        non_retryable=True,
    )


def no_activity(function: str) -> ApplicationError:
    """A workflow calls the function itself."""
    return ApplicationError(
        f"needs_lock is for activities, and {function} runs in a workflow: there write `async with "
        "dibs.temporal.Semaphore(...).acquire():` around what needs the lock",
        type=NOT_INSTALLED,
        non_retryable=True,
    )


def called_too_late(activity: str) -> ApplicationError:
    """A task or thread that the activity has left behind calls it again."""
    return ApplicationError(
        f"{activity} was called after its activity had ended and released the lock: "
        "an activity has to await the tasks that it starts",
        type=NOT_HELD,
        non_retryable=True,
    )


def other_lock(activity: str, *, held: str | bytes, needed: str | bytes) -> ApplicationError:
    """The activity calls itself with arguments that make another name."""
    return ApplicationError(
        f"{activity} needs the lock {needed!r}, and this activity holds {held!r}: run it as "
        f"another activity, or call {activity.rpartition('.')[2]}.__wrapped__, which takes no lock",
        type=NOT_HELD,
        non_retryable=True,
    )


def lost(error: LeaseLost) -> ApplicationError:
    """The lock was lost. Retried, in turn, unless somebody has revoked it on purpose."""
    return ApplicationError(
        f"{error}: what the activity did since then may have met another's work",
        error.reason,
        type="LeaseLost",
        non_retryable=error.reason == "revoked",
    )


def not_acquired(error: DibsError | TypeError | ValueError) -> ApplicationError:
    """There is no lock. A store that is unavailable is retried soon, a mistake never."""
    away = isinstance(error, BackendUnavailable)
    return ApplicationError(
        str(error),
        type=type(error).__name__,
        non_retryable=isinstance(error, _FOR_GOOD) or not isinstance(error, DibsError),
        next_retry_delay=timedelta(seconds=uniform(0.5, 2.0)) if away else None,  # noqa: S311
    )


def waiting(key: str, waited: float, outage: str = "") -> ApplicationError:
    """This attempt ends, and the next one continues the wait. `outage`: why the store does not answer."""
    why = f", because its store is away: {outage}" if outage else ""
    return ApplicationError(
        f"waiting for a slot of {key}, for {waited:.0f} s so far{why}",
        type=WAITING,
        next_retry_delay=AWAY,
        category=ApplicationErrorCategory.BENIGN,
    )
