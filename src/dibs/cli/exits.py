"""Exit codes, the code of each error, and how the program ends."""

import atexit
import os
import select
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

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
        case (
            InvalidName()
            | InvalidRequest()
            | UnsafeTiming()
            | NotConfigured()
            | MissingCapability()
        ):
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


ENDS = 5.0
"""Seconds that exit functions, and threads that are no daemons, can take."""


def leave(code: int, interrupt: KeyboardInterrupt | None = None) -> int:
    """Return the exit code, and prepare the end of the process. The caller exits with that code.

    After SIGINT the process ends by that signal. Otherwise a shell would go on with its script.

    Temporal's threads keep running during the interpreter's shutdown, and sometimes crash it. So after an
    interrupt, and if Temporal was used, the process ends right after the exit functions.
    """
    if interrupt is not None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends us at once
    elif "temporalio" not in sys.modules:
        return code
    leave_within(ENDS, code)
    _last_actions.append(lambda: _end(code, interrupt))
    return code


_last_actions: list[Callable[[], None]] = []


@atexit.register
def _act_last() -> None:
    """Run after the exit functions of other modules: this one is registered before they are imported."""
    for action in _last_actions:
        action()


def _end(code: int, interrupt: KeyboardInterrupt | None) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # it is closed, or there is none
    if interrupt is not None:
        os.kill(0 if getattr(interrupt, "everyone", False) else os.getpid(), signal.SIGINT)
    os._exit(code)  # also if the signal does nothing, as for process 1


def leave_within(seconds: float, code: int) -> None:
    """End the program within that time, with this exit code, whatever happens.

    Call it in the main thread. Only the first call counts.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        return

    def end(signum: int, frame: FrameType | None) -> None:
        try:
            if select.select([], [2], [], 0)[1]:  # otherwise the write could block
                os.write(2, _GIVEN_UP.format(seconds).encode())
        finally:
            os._exit(code)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)


_GIVEN_UP = (
    "dibs: could not close the store within {:.3g} s: a queue position or a lease there expires by "
    "itself\n"
)
