"""Wakeups as datagrams: a version, and one record after the other.

Anybody on the machine can write to a socket, so nothing in a datagram is trusted by itself: a grant
carries its proof (see `core/proof.py`), and all else only makes its reader ask.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import get_args

from dibs.model import Event, Wakeup

VERSION = b"DI1"
MAX_SIZE = 65536
"""A datagram is not read further than this."""

FULL = 8192
"""Wakeups share a datagram up to this size: a socket's queue holds few datagrams, not few bytes."""

MAX_DETAIL = 200

_RECORD = struct.Struct("<BqddHHHHH")
"""Event, token, time of the grant, window; then how long the key, the lease, the detail and the proof are,
in bytes, and how many slots follow them."""

_EVENTS: tuple[Event, ...] = get_args(Event.__value__)
_CODES = {event: code for code, event in enumerate(_EVENTS)}


def write(wakeups: Sequence[Wakeup]) -> Iterator[bytes]:
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


def read(letter: bytes, inbox: str) -> Sequence[Wakeup]:
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
