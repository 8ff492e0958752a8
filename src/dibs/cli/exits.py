"""Exit codes, which error leads to which, and what a missing extra is told."""

from collections.abc import Generator
from contextlib import contextmanager

from dibs.errors import (
    AcquireTimeout,
    DibsError,
    Forbidden,
    InvalidName,
    InvalidRequest,
    LeaseLost,
    MissingCapability,
    NotConfigured,
    UnsafeTiming,
)

FREE = 1
"""`show` and `revoke`: NAME is not held."""
USAGE = 64
UNAVAILABLE = 69
BUG = 70
UNWRITTEN = 74
NOT_ACQUIRED = 75
LOST = 76
FORBIDDEN = 77
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128
"""Plus the signal's number."""


def code_of(error: DibsError) -> int:
    """The exit code of an error: try again, correct the call, or look at the store."""
    match error:
        case AcquireTimeout():
            return NOT_ACQUIRED
        case LeaseLost():
            return LOST
        case Forbidden():
            return FORBIDDEN
        case InvalidName() | InvalidRequest() | UnsafeTiming():
            return USAGE
        case NotConfigured() | MissingCapability():
            return USAGE
        case _:
            return UNAVAILABLE


@contextmanager
def needing(extra: str) -> Generator[None]:
    """Imports in this block need one of our extras. Raises `NotConfigured` where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "dibs":
            raise
        raise NotConfigured(
            f"the package {package} is missing: pip install 'dibs[{extra}]'"
        ) from error
