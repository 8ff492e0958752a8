"""Notifications between the users of one file, as datagrams.

On Linux the socket's name lies in the abstract namespace: it needs no file and vanishes with its process,
so a kill leaves nothing behind. Such names do not reach into another network namespace. Two containers
that share a file get each other's notifications only when their waiters ask again by themselves, which
they do every few seconds. Elsewhere the socket is a file in the folder for temporary files.

Anybody on the machine can write to a socket, so nothing in a datagram is trusted by itself: a grant carries
its proof (`core/proof.py`), and everything else only makes the reader ask.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dibs.core.codec import decode_notification, encode
from dibs.model import Notification

AT_ONCE = 64
"""Datagrams read in a row, at most."""

FULL = 8192
"""Bytes up to which notifications share a datagram: a socket's queue holds few datagrams, not few bytes."""

MAX_SIZE = 65536
"""Bytes of a datagram that are read, at most."""

MAX_DETAIL = 200
"""Characters of a notification's detail that are sent, at most."""

VERSION = b"DI2"


class Notifier:
    """Sends notifications to other connections. Once it listens, it receives our own."""

    def __init__(self) -> None:
        self.inbox: str = ""
        """The address at which we listen; empty while we do not."""
        self.socket: socket.socket | None = None

    def listen(self) -> bool:
        """Have an inbox, unless there is one. False if such sockets are not available here."""
        if self.inbox:
            return True
        self.close()
        inbox = _new_address()
        try:
            self.socket = _new_socket()
            self.socket.bind(_name(inbox))
        except OSError:
            self.close()
            return False
        self.inbox = inbox
        return True

    def send(self, notifications: Sequence[Notification]) -> list[Notification]:
        """Send notifications to their inboxes, and return those for our own. For any thread.

        A waiter that cannot be reached asks again by itself.
        """
        own: list[Notification] = []
        others: dict[str, list[Notification]] = {}
        for each in notifications:
            if each.inbox:
                (own if each.inbox == self.inbox else others.setdefault(each.inbox, [])).append(
                    each
                )
        for inbox, theirs in others.items():
            with suppress(OSError, ValueError):  # it has gone, its queue is full, it is no address
                sender = self.socket = self.socket or _new_socket()
                for datagram in datagrams_of(theirs):
                    sender.sendto(datagram, _name(inbox))
        return own

    def receive(self, most: int = AT_ONCE) -> list[Notification]:
        """The notifications that have arrived, in at most so many datagrams. Never waits."""
        found: list[Notification] = []
        if self.socket is not None:
            with suppress(OSError):
                for _ in range(most):
                    found += notifications_in(self.socket.recv(MAX_SIZE), self.inbox)
        return found

    def sockets(self) -> Sequence[socket.socket]:
        """Where notifications arrive."""
        return [self.socket] if self.socket is not None else []

    def close(self, *, in_child: bool = False) -> None:
        """Stop listening. In a forked child, leave the parent's inbox as it is."""
        inbox, self.inbox = self.inbox, ""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        if inbox.startswith("/") and not in_child:
            with suppress(OSError):
                Path(inbox).unlink()


def available() -> bool:
    """Can notifications be received here?"""
    probe = Notifier()
    found = probe.listen()
    probe.close()
    return found


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.settimeout(0)
    return made


def _new_address() -> str:
    name = f"dibs-{os.urandom(12).hex()}"
    return name if sys.platform == "linux" else _in_temporary_folder(name)


def _in_temporary_folder(name: str) -> str:
    import tempfile

    return str(Path(tempfile.gettempdir(), name))


def _name(inbox: str) -> str:
    return inbox if inbox.startswith("/") else "\0" + inbox


# A datagram is `VERSION`, then a line for each notification: a JSON array of the key, in hex, and the fields
# of `core/codec.py`.


def datagrams_of(notifications: Sequence[Notification]) -> Iterator[bytes]:
    """Datagrams that carry these notifications."""
    datagram = VERSION
    for each in notifications:
        if len(each.detail) > MAX_DETAIL:
            each = replace(each, detail=each.detail[:MAX_DETAIL])
        line = b"\n" + json.dumps([each.key.hex(), *encode(each)]).encode()
        if datagram != VERSION and len(datagram) + len(line) > FULL:
            yield datagram
            datagram = VERSION
        datagram += line
    if datagram != VERSION:
        yield datagram


def notifications_in(datagram: bytes, inbox: str) -> list[Notification]:
    """The notifications in a datagram; none if it is not written as ours are."""
    version, *lines = datagram.split(b"\n")
    if version != VERSION:
        return []
    try:
        read = [json.loads(line) for line in lines]
        return [decode_notification(fields, bytes.fromhex(key), inbox) for key, *fields in read]
    except (ValueError, TypeError, RecursionError):
        return []
