"""Commands as the script reads them: a letter, then a struct (`COMMANDS` in `lua/replies.lua`)."""

from collections.abc import Callable
from struct import Struct, error
from typing import Any

from leasehold.core.names import fingerprint
from leasehold.model import Acquire, Command, Inspect, Release, Renew, Resize, Revoke

_RENEW = Struct("<cdI")
_RELEASE = Struct("<c2dI")
_RESIZE = Struct("<c2dI")
_REVOKE = Struct("<cBB")
_LENGTH = Struct("<I")

_acquire_of: dict[tuple[int, ...], Callable[..., bytes]] = {}
"""How to pack an Acquire whose texts are that long: one process's hardly ever differ."""
MAX_SHAPES = 256


def packed(command: Command) -> bytes:
    """A command for the script. It answers `invalid` to one that fits into no struct, and says why."""
    try:
        return _PACK[type(command)](command)
    except (error, OverflowError, UnicodeEncodeError) as problem:
        return b"F" + str(problem).encode(errors="replace")


def _acquire(command: Acquire) -> bytes:
    if type(command.units) is not int or type(command.priority) is not int:
        return b"Funits and priority must be whole numbers"  # a double would not tell
    lease = fingerprint(command.id).encode()  # Redis can't make one
    own, owner = command.id.encode(), command.owner.encode()
    note, inbox = command.note.encode(), command.inbox.encode()
    lengths = len(own), len(lease), len(owner), len(note), len(inbox)
    pack = _acquire_of.get(lengths) or _shape(lengths)
    return pack(
        b"A",
        command.units,
        command.capacity,
        command.priority,
        command.tokens,
        command.floor,
        command.ttl,
        command.patience,
        command.lock_delay,
        command.queue,
        lengths[0],
        own,
        lengths[1],
        lease,
        lengths[2],
        owner,
        lengths[3],
        note,
        lengths[4],
        inbox,
    )


def _shape(lengths: tuple[int, ...]) -> Callable[..., bytes]:
    if len(_acquire_of) >= MAX_SHAPES:
        _acquire_of.clear()
    texts = "".join(f"I{length}s" for length in lengths)
    pack = _acquire_of[lengths] = Struct("<c8dB" + texts).pack
    return pack


def _renew(command: Renew) -> bytes:
    own = command.id.encode()
    return _RENEW.pack(b"N", command.ttl, len(own)) + own + _text(command.inbox)


def _release(command: Release) -> bytes:
    own = command.id.encode()
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
