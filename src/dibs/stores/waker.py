"""How a thread waits for notifications at its sockets, and how other threads wake it."""

import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dibs.model import Notification


class HasFileno(Protocol):
    """Something to wait at."""

    def fileno(self) -> int: ...


class Waker:
    """A pair of sockets: a byte sent into one wakes the thread that waits at the other."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        for end in (self._here, self._there):
            end.settimeout(0)

    def wake(self) -> None:
        """Let `wait`, or the next one, return at once. From any thread, also while it is closed."""
        try:
            self._there.send(b"\0")
        except OSError:
            pass  # it was woken already, or is closed

    def wait(self, timeout: float | None, *sockets: HasFileno | int) -> bool:
        """Wait for `wake`, or for something to read at `sockets`. Returns True after a `wake`.

        `timeout` is in seconds; None waits for ever.
        """
        own = self._here.fileno()
        if own < 0:
            return True  # it is closed
        poll = select.poll()
        poll.register(own, select.POLLIN)
        for each in sockets:
            poll.register(each, select.POLLIN)
        found = poll.poll(None if timeout is None else timeout * 1000)
        if not any(fd == own for fd, _ in found):
            return False
        try:
            self._here.recv(4096)
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Close both sockets."""
        self._here.close()
        self._there.close()


class Incoming:
    """The notifications of a blocking connection, from `open` to `close`.

    `receive` returns what has arrived, without waiting, and `sockets` where more arrives.
    """

    def __init__(
        self,
        receive: Callable[[], Sequence[Notification]],
        sockets: Callable[[], Iterable[HasFileno | int]],
    ) -> None:
        self._receive = receive
        self._sockets = sockets
        self._waker: Waker | None = None
        self._own: list[Notification] = []

    @property
    def is_open(self) -> bool:
        """Somebody wants notifications."""
        return self._waker is not None

    def open(self) -> None:
        """Begin, unless that is done."""
        self._waker = self._waker or Waker()

    def close(self) -> None:
        """Drop what has not been taken; a thread that waits returns."""
        waker, self._waker = self._waker, None
        self._own = []
        if waker is not None:
            waker.close()

    def add(self, notifications: Iterable[Notification]) -> None:
        """Take in notifications that one of our own calls has brought."""
        if self.is_open:
            self._own += notifications

    def wait(self, timeout: float | None) -> Sequence[Notification]:
        """Wait for notifications; none at the timeout and after a `wake`. Raises what `receive` raises."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            arrived, self._own = [*self._own, *self._receive()], []
            left = None if end is None else end - time.monotonic()
            waker = self._waker
            if arrived or waker is None or (left is not None and left <= 0):
                return arrived
            if waker.wait(left, *self._sockets()):
                return ()

    def wake(self) -> None:
        """Let `wait`, or the next one, return at once. For signal handlers, too."""
        waker = self._waker
        if waker is not None:
            waker.wake()
