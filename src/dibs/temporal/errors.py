"""Errors in workflow code. Each is also a failure of Temporal's, and so ends the workflow if uncaught.

An ordinary exception would make the workflow repeat its task until somebody fixes its code.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from temporalio.exceptions import ApplicationError

from dibs.errors import AcquireTimeout, BackendUnavailable, DibsError, LeaseLost, NotHeld, Reentrant
from dibs.temporal.sdk import name_error


class _Failure(DibsError, ApplicationError):
    """An error that Temporal knows by the name `kind`, and retries only if `again` is set."""

    kind = "DibsError"
    again = False

    def __init__(self, message: str = "", **about: Any) -> None:
        # by name: if an error is an OSError as well, `super()` would never get there
        ApplicationError.__init__(self, message, type=self.kind, non_retryable=not self.again)
        super().__init__(message, **about)
        name_error(self, self.kind, retryable=self.again)

    def __str__(self) -> str:
        return self.message


class PermitLost(LeaseLost, _Failure):
    """The permit ended before its holder gave it up. Another workflow can hold the slot now.

    `reason` is `expired`, `max_hold`, `revoked` (somebody ended the permit) or `closed` (it is gone).
    """

    kind = "LeaseLost"


class AcquireTimedOut(AcquireTimeout, _Failure):
    """No slot was free within `wait`."""

    kind = "AcquireTimeout"


class AlreadyHeld(Reentrant, _Failure):
    """This task holds every slot itself, so waiting for one would never end."""

    kind = "Reentrant"


class NotServed(BackendUnavailable, _Failure):
    """No worker serves the task queue of the permits. Run `dibs temporal worker`."""

    kind = "BackendUnavailable"
    again = True


class NotHolding(NotHeld, _Failure):
    """The permit was released or detached before."""

    kind = "NotHeld"


class Misused(_Failure, ValueError):
    """A name, a duration or another argument makes no sense."""

    kind = "Misused"


@contextmanager
def checked() -> Generator[None]:
    """Turn errors about arguments into `Misused`, which fails the workflow, with the same text."""
    try:
        yield
    except ApplicationError:
        raise
    except (ValueError, TypeError, DibsError) as error:
        raise Misused(str(error)) from error
