"""Commands as the script reads them: a letter, then a struct (`Command` in `lua/replies.lua`)."""

from collections.abc import Callable
from struct import Struct, error
from typing import Any

from dibs.core.names import fingerprint
from dibs.model import Acquire, Command, Inspect, Release, Renew, Resize, Revoke

_PLAIN = Struct("<cB2dI")
_ACQUIRE = Struct("<c7dB")
_RENEW = Struct("<cdI")
_RELEASE = Struct("<c2dI")
_RESIZE = Struct("<c2dI")
_REVOKE = Struct("<cBB")
_LENGTH = Struct("<I")

_LEASE = _LENGTH.pack(24)
"""How long a fingerprint is. It goes with the id, since Redis can't make one."""

LONG = 1e9
"""Who asks for more seconds asks for something unusual."""

_around: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
"""What stands before and behind the id of an Acquire: one process's hardly ever differ in it."""
MAX_AROUND = 256
MAX_TEXTS = 4096
"""Longer texts than this are not remembered, in bytes."""


def packed(command: Command) -> bytes:
    """A command for the script. It answers `invalid` to one that fits into no struct, and says why."""
    try:
        return _PACK[type(command)](command)
    except (error, OverflowError, TypeError, UnicodeEncodeError) as problem:
        return b"F" + str(problem).encode(errors="replace")


def _acquire(command: Acquire) -> bytes:
    if type(command.units) is not int or type(command.priority) is not int:
        return b"Funits and priority must be whole numbers"  # a double would not tell
    own = command.id.encode()
    asked = (
        len(own),
        command.owner,
        command.note,
        command.inbox,
        command.address,
        command.trace,
        command.ttl,
        command.patience,
        command.queue,
        command.units,
        command.capacity,
        command.priority,
        command.floor,
        command.lock_delay,
    )
    head, tail = _around.get(asked) or _surround(command, asked)
    return b"".join((head, own, _LEASE, fingerprint(command.id).encode(), tail))


def _surround(command: Acquire, asked: tuple[Any, ...]) -> tuple[bytes, bytes]:
    length = asked[0]
    texts = (command.owner, command.note, command.inbox, command.address, command.trace)
    tail = b"".join(map(_text, texts))
    if _is_plain(command):
        size = 4 + length + 4 + 24 + len(tail)
        head = _PLAIN.pack(b"a", command.queue, command.ttl, command.patience, size)
    else:
        head = _ACQUIRE.pack(
            b"A",
            command.units,
            command.capacity,
            command.priority,
            command.floor,
            command.ttl,
            command.patience,
            command.lock_delay,
            command.queue,
        )
    around = head + _LENGTH.pack(length), tail
    if len(tail) <= MAX_TEXTS:
        if len(_around) >= MAX_AROUND:
            _around.clear()
        _around[asked] = around
    return around


def _is_plain(command: Acquire) -> bool:
    """It asks for a mutex, and for nothing but time."""
    return (
        command.units == command.capacity == 1
        and command.priority == command.floor == command.lock_delay == 0
        and 0 < command.ttl <= LONG
        and 0 < command.patience <= LONG
    )


def _renew(command: Renew) -> bytes:
    own = command.id.encode()
    return _RENEW.pack(b"N", command.ttl, len(own)) + own + _text(command.inbox)


def _release(command: Release) -> bytes:
    own = command.id.encode()
    if command.keep == command.bury == 0:
        return b"x%b%b" % (_LENGTH.pack(len(own)), own)
    return _RELEASE.pack(b"X", command.keep, command.bury, len(own)) + own


def _resize(command: Resize) -> bytes:
    own = command.id.encode()
    return _RESIZE.pack(b"Z", command.units, command.seq, len(own)) + own


def _inspect(_command: Inspect) -> bytes:
    return b"I"


def _revoke(command: Revoke) -> bytes:
    head = _REVOKE.pack(b"V", command.now, command.lease is not None)
    return head + _text(command.lease or "") + _text(command.reason)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


_PACK: dict[type, Callable[[Any], bytes]] = {
    Acquire: _acquire,
    Renew: _renew,
    Release: _release,
    Resize: _resize,
    Inspect: _inspect,
    Revoke: _revoke,
}
