"""Temporal's threads in this process: they do not survive a fork, and must be idle at its end."""

import atexit
import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.errors import InvalidRequest
from dibs.fork import FreshLock, generation

if TYPE_CHECKING:
    from temporalio.runtime import Runtime

SETTLES = 0.02
"""Seconds that the threads need to let go of a call that has ended."""

LOOKS = 0.01
CALM = 3
"""So many looks in a row must find all threads idle."""

AT_MOST = 1.0
"""Seconds that the end of the program waits for them at most."""

ENDS = 0.15
"""Seconds that the end of the program waits for them at least."""


class _Threads:
    def __init__(self) -> None:
        self._lock = FreshLock()
        self._runtime: Runtime | None = None
        self._generation = 0

    def runtime(self) -> "Runtime":
        """The runtime of our clients. Raises `InvalidRequest` in a child of a process that had one."""
        self.check_fork()
        from temporalio.runtime import Runtime, TelemetryConfig

        with self._lock.held:
            if self._runtime is None:
                wait_at_exit()
                self._generation = generation.number
                self._runtime = Runtime(telemetry=TelemetryConfig())
            return self._runtime

    def check_fork(self) -> None:
        """Raise `InvalidRequest` if this process was forked after Temporal was used."""
        if self._runtime is not None and self._generation != generation.number:
            raise InvalidRequest(
                "this process was forked after Temporal was used, and Temporal's threads do not survive "
                "a fork: fork before the first use, or start the child with spawn"
            )

    def leak_in_child(self) -> None:
        """The destructor would wait for the parent's threads, and the child would never end."""
        leak(self._runtime)


_threads = _Threads()
runtime, check_fork = _threads.runtime, _threads.check_fork
os.register_at_fork(after_in_child=_threads.leak_in_child)


def leak(thing: Any) -> None:
    """Keep it until the process is gone, also when the interpreter ends."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@cache
def wait_at_exit() -> None:
    """Make the end of this process wait for Temporal's threads.

    A thread that takes Python's lock while the interpreter ends crashes the process:
    https://github.com/temporalio/sdk-python/issues/300
    """
    atexit.register(settle, ENDS)


def settle(at_least: float = SETTLES) -> None:
    """Wait until Temporal's threads are idle: a moment, or longer on a busy machine."""
    until = time.monotonic() + AT_MOST
    time.sleep(at_least)
    calm = 0
    while calm < CALM and time.monotonic() < until:
        calm = 0 if _any_works() else calm + 1
        time.sleep(LOOKS)


def _any_works() -> bool:
    """Whether a thread that is not Python's runs. False where /proc does not show it, as on macOS."""
    known = {thread.native_id for thread in threading.enumerate()}
    for each in Path("/proc/self/task").glob("*/stat"):
        try:
            if (
                int(each.parent.name) not in known
                and each.read_text().rpartition(")")[2].split()[0] == "R"
            ):
                return True
        except OSError:
            pass  # it has ended
    return False
