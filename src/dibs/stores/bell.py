"""A bell that any thread may ring, for one that waits at sockets."""

import select
import socket
from typing import Protocol


class Ear(Protocol):
    """Something to wait at."""

    def fileno(self) -> int: ...


class Bell:
    """A pair of sockets: what is sent into one wakes whoever waits at the other."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        for end in (self._here, self._there):
            end.settimeout(0)

    def ring(self) -> None:
        """From any thread, also as it is closed."""
        try:
            self._there.send(b"\0")
        except OSError:
            pass  # it rings already, or is closed

    def wait(self, timeout: float | None, *ears: Ear | int) -> bool:
        """Wait for it, or for something to read at `ears`; tell whether it rang. It is silent then.

        `timeout` is in seconds; with None it is waited for ever.
        """
        own = self._here.fileno()
        if own < 0:
            return True  # it is closed: there is nothing to wait for any more
        poll = select.poll()
        poll.register(own, select.POLLIN)
        for ear in ears:
            poll.register(ear, select.POLLIN)
        found = poll.poll(None if timeout is None else timeout * 1000)
        if not any(fd == own for fd, _ in found):
            return False
        try:
            self._here.recv(4096)
        except OSError:
            pass
        return True

    def close(self) -> None:
        """No more use of it."""
        self._here.close()
        self._there.close()
