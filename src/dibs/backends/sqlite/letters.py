"""Wakeups as datagrams: a version, a seal, and one record after the other.

Anybody on the machine may write to a socket. What isn't sealed with the file's own secret, which only those
who can read the file know, is dropped: nobody else can tell a waiter that it was granted something.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

from dibs.model import Event, Wakeup

VERSION = b"DI1"
SEAL = 16
MAX_SIZE = 65536
"""A datagram is not read further than this."""

FULL = 8192
"""Wakeups share a datagram up to this size: a socket's queue holds few datagrams, not few bytes."""

MAX_DETAIL = 200

MAX_SLOTS = 1024
"""Whoever is granted more than that is told to ask, as a datagram can't carry them."""

_HEAD = len(VERSION) + SEAL

_RECORD = struct.Struct("<BqddHHHH")
"""Event, token, time of the grant, window; then how long the key, the lease and the detail are, in
bytes, and how many slots follow them."""

_EVENTS: tuple[Event, ...] = get_args(Event.__value__)
_CODES = {event: code for code, event in enumerate(_EVENTS)}


def write(wakeups: Sequence[Wakeup], secret: bytes) -> Iterator[bytes]:
    """Datagrams that carry these wakeups."""
    body = b""
    for wakeup in wakeups:
        record = _record(wakeup)
        if body and len(body) + len(record) > FULL:
            yield VERSION + _seal(body, secret) + body
            body = b""
        body += record
    if body:
        yield VERSION + _seal(body, secret) + body


def read(letter: bytes, secret: bytes, inbox: str) -> Sequence[Wakeup]:
    """The wakeups in a datagram; none in one that is not from a user of the same file."""
    body = letter[_HEAD:]
    seal = letter[len(VERSION) : _HEAD]
    if not (letter.startswith(VERSION) and _hashing()[1](seal, _seal(body, secret))):
        return ()
    try:
        return list(_wakeups(body, inbox))
    except (struct.error, IndexError, UnicodeDecodeError):
        return ()  # a friend's, but of a release that writes otherwise


def _seal(body: bytes, secret: bytes) -> bytes:
    digest: bytes = _hashing()[0](body, key=secret, digest_size=SEAL).digest()
    return digest


@cache
def _hashing() -> tuple[Callable[..., Any], Callable[[bytes, bytes], bool]]:
    """Loaded when needed: a command that neither wakes nor is woken starts without."""
    from hashlib import blake2b
    from hmac import compare_digest

    return blake2b, compare_digest


def _record(wakeup: Wakeup) -> bytes:
    if len(wakeup.slots) > MAX_SLOTS:
        wakeup = replace(wakeup, event="head", slots=())
    key, slots = wakeup.key, wakeup.slots
    lease, detail = wakeup.lease.encode(), wakeup.detail[:MAX_DETAIL].encode(errors="replace")
    about = wakeup.token, wakeup.granted_at, wakeup.window
    sizes = len(key), len(lease), len(detail), len(slots)
    head = _RECORD.pack(_CODES[wakeup.event], *about, *sizes)
    return b"".join((head, key, lease, detail, struct.pack(f"<{len(slots)}I", *slots)))


def _wakeups(body: bytes, inbox: str) -> Iterator[Wakeup]:
    at = 0
    while at < len(body):
        event, token, granted_at, window, *sizes = _RECORD.unpack_from(body, at)
        lease_at = at + _RECORD.size + sizes[0]
        detail_at = lease_at + sizes[1]
        slots_at = detail_at + sizes[2]
        yield Wakeup(
            body[at + _RECORD.size : lease_at],
            body[lease_at:detail_at].decode(),
            inbox,
            _EVENTS[event],
            token,
            struct.unpack_from(f"<{sizes[3]}I", body, slots_at),
            granted_at,
            window,
            body[detail_at:slots_at].decode(),
        )
        at = slots_at + 4 * sizes[3]
