"""Temporal's threads in this process: what a fork means to them, and what the end of the program."""

import atexit
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dibs.process import FreshLock, on_fork
from dibs.stores.loop_thread import keep_for_ever

if TYPE_CHECKING:
    from temporalio.runtime import Runtime

LEAST = 0.02
"""So long they take to forget a call that has ended, in seconds, where nothing else runs."""

LOOKS = 0.01
CALM = 3
"""As many looks in a row must find all of them at rest."""

AT_MOST = 1.0
"""So long they are waited for."""


class _Threads:
    """Those of this process: a child that was forked has its own, as no thread survives a fork."""

    def __init__(self) -> None:
        self._lock = FreshLock()
        self._runtime: Runtime | None = None
        on_fork(self)

    @property
    def are_in_use(self) -> bool:
        """There are some, for us."""
        return self._runtime is not None

    def runtime(self) -> "Runtime":
        """They, as clients want them."""
        with self._lock.held:
            if self._runtime is None:
                self._runtime = _lonely()
            return self._runtime

    def after_fork(self) -> None:
        """In the child: whether there is a client or not, the parent's must not be taken apart."""
        if self._runtime is not None:
            keep_for_ever(self._runtime)
        self._runtime = None


def _lonely() -> "Runtime":
    """With one thread that makes calls.

    Of several all but one sleep, entered in a table of the whole process. A child that is forked inherits
    the table, whose entries lie on the stacks of threads that it has not: the first of its own that comes
    to sleep beside such an entry may crash it. One alone never sleeps but for what its server says.
    """
    from temporalio.runtime import Runtime, TelemetryConfig

    before = os.environ.get(_WORKERS)
    os.environ[_WORKERS] = "1"
    try:
        return Runtime(telemetry=TelemetryConfig())
    finally:
        if before is None:
            del os.environ[_WORKERS]
        else:
            os.environ[_WORKERS] = before


_WORKERS = "TOKIO_WORKER_THREADS"

_ours = _Threads()
runtime = _ours.runtime


@atexit.register
def let_go() -> None:
    """Wait a moment for Temporal's threads, which still hold what they have just told us of.

    One that comes for Python's lock while the interpreter ends would crash it.
    """
    if _ours.are_in_use:
        rest()


def rest() -> None:
    """Wait until no thread but Python's own is at work: a moment, or longer on a busy machine."""
    until = time.monotonic() + AT_MOST
    time.sleep(LEAST)
    calm = 0
    while calm < CALM and time.monotonic() < until:
        calm = 0 if _any_works() else calm + 1
        time.sleep(LOOKS)  # whoever waits for Python's lock has it meanwhile


def _any_works() -> bool:
    """False as well where that can't be told, as on macOS."""
    known = {thread.native_id for thread in threading.enumerate()}
    try:
        others = [each for each in os.listdir("/proc/self/task") if int(each) not in known]
    except OSError:
        return False
    return any(_state(each) == "R" for each in others)


def _state(thread: str) -> str:
    try:
        told = Path(f"/proc/self/task/{thread}/stat").read_text("ascii", "replace")
    except OSError:
        return ""  # it has ended
    return told.rpartition(")")[2].split()[0]
