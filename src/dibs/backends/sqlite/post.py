"""The socket through which the users of one file wake each other.

On Linux its name lies in the abstract namespace: it needs no file and vanishes with its process, so a kill
leaves nothing behind. Such names don't reach into another network namespace: two containers that
share a file hear each other's wakeups only when their waiters ask again by themselves, which they do every
few seconds. Elsewhere the socket is a file in the folder for temporary files, removed by `close`.
"""

import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dibs.backends.sqlite import letters
from dibs.model import Wakeup

AT_ONCE = 64
"""So many datagrams are read before others have their turn."""


class Post:
    """A non-blocking datagram socket, its address, and how wakeups go through it."""

    def __init__(self, *, listening: bool = True) -> None:
        """Raises `OSError` where such sockets aren't to be had."""
        self.inbox = _new_address() if listening else ""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(0)
        if not listening:
            return
        try:
            self.socket.bind(_name(self.inbox))
        except OSError:
            self.socket.close()
            raise

    def send(self, wakeups: Sequence[Wakeup]) -> None:
        """Push wakeups to their inboxes. Any thread; whom it can't reach will ask by itself."""
        if len(wakeups) == 1:
            return self._send_to(wakeups[0].inbox, wakeups)
        by_inbox: dict[str, list[Wakeup]] = {}
        for wakeup in wakeups:
            by_inbox.setdefault(wakeup.inbox, []).append(wakeup)
        for inbox, theirs in by_inbox.items():
            self._send_to(inbox, theirs)

    def _send_to(self, inbox: str, wakeups: Sequence[Wakeup]) -> None:
        try:
            for letter in letters.write(wakeups):
                self.socket.sendto(letter, _name(inbox))
        except (OSError, ValueError, struct.error):
            pass  # it has gone, its queue is full, it is no address

    def receive(self, most: int = AT_ONCE) -> Sequence[Wakeup]:
        """What lies there, without waiting; no more than `most` datagrams of it."""
        found: list[Wakeup] = []
        for _ in range(most):
            try:
                letter = self.socket.recv(letters.MAX_SIZE)
            except OSError:
                break
            found += letters.read(letter, self.inbox)
        return found

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()
        if self.inbox.startswith("/"):
            with suppress(OSError):
                Path(self.inbox).unlink()

    def close_in_child(self) -> None:
        """Let go of the parent's socket without a word to anybody."""
        self.socket.close()


def _new_address() -> str:
    name = f"dibs-{os.urandom(12).hex()}"
    return name if sys.platform == "linux" else _among_temporary_files(name)


def _among_temporary_files(name: str) -> str:
    import tempfile

    return str(Path(tempfile.gettempdir(), name))


def _name(inbox: str) -> str:
    return inbox if inbox.startswith("/") else "\0" + inbox
