"""What goes wrong in workflow code: our errors, which also fail a workflow as Temporal wants it.

An ordinary exception makes a workflow repeat its task for ever, until somebody mends its code. Each of
these is one of Temporal's own failures besides: uncaught, it ends the workflow.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from temporalio.exceptions import ApplicationError

from dibs.errors import AcquireTimeout, BackendUnavailable, DibsError, LeaseLost, NotHeld, Reentrant
from dibs.temporal.sdk import name_error


class _Failure(DibsError, ApplicationError):
    """An error of ours that Temporal knows by the name `kind`, and that it may try again or not."""

    kind = "DibsError"
    again = False

    def __init__(self, message: str = "", **about: Any) -> None:
        # by name: where an error is the system's as well, `super()` would never get there
        ApplicationError.__init__(self, message, type=self.kind, non_retryable=not self.again)
        super().__init__(message, **about)
        name_error(self, self.kind, retryable=self.again)

    def __str__(self) -> str:
        return self.message


class PermitLost(LeaseLost, _Failure):
    """The permit ended before its holder gave it up: another may hold the slot by now.

    `reason` is `expired`, `max_hold`, `revoked` (somebody ended the permit) or `closed` (it is gone).
    """

    kind = "LeaseLost"


class AcquireTimedOut(AcquireTimeout, _Failure):
    """No slot was to be had within `wait`."""

    kind = "AcquireTimeout"


class AlreadyHeld(Reentrant, _Failure):
    """This very task holds every slot, so waiting for one would never end."""

    kind = "Reentrant"


class NotServed(BackendUnavailable, _Failure):
    """Nobody serves the task queue of the permits; run `dibs temporal worker`."""

    kind = "BackendUnavailable"
    again = True


class NotHolding(NotHeld, _Failure):
    """The operation needs a permit that is held, and this one was released or detached."""

    kind = "NotHeld"


class Misused(_Failure, ValueError):
    """A name, a duration or another argument that makes no sense."""

    kind = "Misused"


@contextmanager
def checked() -> Generator[None]:
    """What is wrong with arguments fails the workflow, with the same words."""
    try:
        yield
    except ApplicationError:
        raise
    except (ValueError, TypeError, DibsError) as error:
        raise Misused(str(error)) from error
