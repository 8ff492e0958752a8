"""What threads wait at and how they are started, so that no interrupt can jam it.

A Ctrl-C may come between any two bytecodes of the main thread. The standard library's events, conditions
and futures, and `Thread.start()`, which waits for an event, keep a lock for some bytecodes of Python: an
interrupt just then leaves it taken for ever, and whoever needs it next, which may be the very thread that
was interrupted, never goes on. What is here is one operation in C on one lock.
"""

import _thread
import threading
from collections.abc import Callable


class Gate:
    """Shut until it is opened, once, by any thread."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let everybody through, from now on."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was open already

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is open; tell whether it is."""
        longest = threading.TIMEOUT_MAX
        opened = self._lock.acquire(timeout=longest if timeout is None else min(timeout, longest))
        if opened:
            self.open()
        return opened


def start_thread(body: Callable[[], None], name: str) -> Gate:
    """Start a daemon thread; the gate opens when it has ended, or could not be started.

    Raises `RuntimeError` where the interpreter ends, and starts no threads any more.
    """
    ended = Gate()

    def run() -> None:
        try:
            body()
        finally:
            ended.open()

    thread = threading.Thread(target=run, name=name, daemon=True)

    def start() -> None:
        try:
            thread.start()
        except RuntimeError:
            ended.open()

    _thread.start_new_thread(start, ())  # where no interrupt comes
    return ended
