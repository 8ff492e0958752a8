"""What somebody did to a permit's workflow, for people. Pure."""

from temporalio.exceptions import CancelledError, TerminatedError

CANCELLED = "somebody has cancelled its workflow"


def by_hand(cause: BaseException | None) -> str:
    """What somebody did to the permit's workflow."""
    if isinstance(cause, TerminatedError):
        return "somebody has terminated its workflow"
    return CANCELLED if isinstance(cause, CancelledError) else "its workflow has failed"
