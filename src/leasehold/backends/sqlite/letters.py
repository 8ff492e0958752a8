"""Wakeups as datagrams: a version, a seal, and JSON.

Anybody on the machine may write to a socket. What isn't sealed with the file's own secret, which only those
who can read the file know, is dropped: nobody else can tell a waiter that it was granted something.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import batched
from typing import Any

from leasehold.model import Wakeup

VERSION = b"LH1"
SEAL = 16
MAX_SIZE = 65536
"""A datagram is not read further than this."""

_HEAD = len(VERSION) + SEAL

PER_LETTER = 16
"""So many wakeups travel in one datagram: a socket's queue holds few datagrams, not few bytes."""

MAX_DETAIL = 200

_EVENTS = {"granted", "head", "revoked", "refused"}
_TYPES = (str, str, str, int, list, float, float, str)


_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def write(wakeups: Sequence[Wakeup], secret: bytes) -> Iterator[bytes]:
    """Datagrams that carry these wakeups."""
    for some in batched(wakeups, PER_LETTER):
        body = _encode([_fields(w) for w in some]).encode()
        yield VERSION + _seal(body, secret) + body


def read(letter: bytes, secret: bytes, inbox: str) -> Sequence[Wakeup]:
    """The wakeups in a datagram; none in one that is not from a user of the same file."""
    body = letter[_HEAD:]
    seal = letter[len(VERSION) : _HEAD]
    if not (letter.startswith(VERSION) and _hashing()[1](seal, _seal(body, secret))):
        return ()
    try:
        found = _decode(body.decode())
    except ValueError:
        return ()
    fields = found if isinstance(found, list) else []
    return [_wakeup(one, inbox) for one in fields if _sound(one)]


def _seal(body: bytes, secret: bytes) -> bytes:
    digest: bytes = _hashing()[0](body, key=secret, digest_size=SEAL).digest()
    return digest


@cache
def _hashing() -> tuple[Callable[..., Any], Callable[[bytes, bytes], bool]]:
    """Loaded when needed: a command that neither wakes nor is woken starts without."""
    from hashlib import blake2b
    from hmac import compare_digest

    return blake2b, compare_digest


def _fields(wakeup: Wakeup) -> tuple[Any, ...]:
    return (
        wakeup.key.decode("latin-1"),
        wakeup.lease,
        wakeup.event,
        wakeup.token,
        wakeup.slots,
        float(wakeup.granted_at),
        float(wakeup.window),
        wakeup.detail[:MAX_DETAIL],
    )


def _sound(fields: Any) -> bool:
    return (
        isinstance(fields, list)
        and tuple(map(type, fields)) == _TYPES
        and fields[2] in _EVENTS
        and all(type(slot) is int for slot in fields[4])
    )


def _wakeup(fields: list[Any], inbox: str) -> Wakeup:
    key, lease, event, token, slots, granted_at, window, detail = fields
    raw = key.encode("latin-1", "replace")
    return Wakeup(raw, lease, inbox, event, token, tuple(slots), granted_at, window, detail)
