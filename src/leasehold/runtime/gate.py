"""A gate between threads that no interrupt can jam."""

import threading


class Gate:
    """Shut until it is opened, once, by any thread.

    `threading.Event` keeps a lock for a few bytecodes of Python, and a Ctrl-C or a garbage collection
    that comes just then would leave whoever sets the event waiting for ever. Here each step is one
    operation on one lock.
    """

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
