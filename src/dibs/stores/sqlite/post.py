"""The socket through which the users of one file wake each other.

On Linux its name lies in the abstract namespace: it needs no file and vanishes with its process, so a kill
leaves nothing behind. Such names don't reach into another network namespace: two containers that
share a file hear each other's wakeups only when their waiters ask again by themselves, which they do every
few seconds. Elsewhere the socket is a file in the folder for temporary files, removed by `close`.

Anybody on the machine can write to a socket, so nothing in a datagram is trusted by itself: a grant carries
its proof (`core/proof.py`), and all else only makes its reader ask.
"""

import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from dibs.model import Event, Wakeup

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
            for letter in letters_of(wakeups):
                self.socket.sendto(letter, _name(inbox))
        except (OSError, ValueError, struct.error):
            pass  # it has gone, its queue is full, it is no address

    def receive(self, most: int = AT_ONCE) -> Sequence[Wakeup]:
        """What lies there, without waiting; no more than `most` datagrams of it."""
        found: list[Wakeup] = []
        for _ in range(most):
            try:
                letter = self.socket.recv(MAX_SIZE)
            except OSError:
                break
            found += wakeups_in(letter, self.inbox)
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


VERSION = b"DI1"
MAX_SIZE = 65536
"""A datagram is not wakeups_in further than this."""

FULL = 8192
"""Wakeups share a datagram up to this size: a socket's queue holds few datagrams, not few bytes."""

MAX_DETAIL = 200

_RECORD = struct.Struct("<BqddHHHHH")
"""Event, token, time of the grant, window; then how long the key, the lease, the detail and the proof are,
in bytes, and how many slots follow them."""

_EVENTS: tuple[Event, ...] = get_args(Event.__value__)
_CODES = {event: code for code, event in enumerate(_EVENTS)}


def letters_of(wakeups: Sequence[Wakeup]) -> Iterator[bytes]:
    """Datagrams that carry these wakeups."""
    letter = VERSION
    for wakeup in wakeups:
        record = _record(wakeup)
        if letter != VERSION and len(letter) + len(record) > FULL:
            yield letter
            letter = VERSION
        letter += record
    if letter != VERSION:
        yield letter


def wakeups_in(letter: bytes, inbox: str) -> Sequence[Wakeup]:
    """The wakeups in a datagram; none in one that is not written as ours are."""
    if not letter.startswith(VERSION):
        return ()
    try:
        return list(_wakeups(letter, inbox))
    except (struct.error, IndexError, UnicodeDecodeError):
        return ()


def _record(wakeup: Wakeup) -> bytes:
    detail = wakeup.detail[:MAX_DETAIL].encode(errors="replace")
    texts = wakeup.key, wakeup.lease.encode(), detail, wakeup.proof.encode()
    about = wakeup.token, wakeup.granted_at, wakeup.window
    sizes = (*map(len, texts), len(wakeup.slots))
    head = _RECORD.pack(_CODES[wakeup.event], *about, *sizes)
    return b"".join((head, *texts, struct.pack(f"<{len(wakeup.slots)}I", *wakeup.slots)))


def _wakeups(letter: bytes, inbox: str) -> Iterator[Wakeup]:
    at = len(VERSION)
    while at < len(letter):
        event, token, granted_at, window, *sizes, count = _RECORD.unpack_from(letter, at)
        at += _RECORD.size
        texts: list[bytes] = []
        for size in sizes:
            texts.append(letter[at : at + size])
            at += size
        key, lease, detail, proof = texts
        slots = struct.unpack_from(f"<{count}I", letter, at)
        at += 4 * count
        grant = token, slots, granted_at, window
        told = detail.decode(), proof.decode()
        yield Wakeup(key, lease.decode(), inbox, _EVENTS[event], *grant, *told)
