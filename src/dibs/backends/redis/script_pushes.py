"""Wakeups as the script publishes them, one behind the other: a mark, the format, a struct."""

from struct import Struct, error
from typing import get_args

from dibs.backends.redis.script_keys import ledger_key
from dibs.backends.redis.script_reader import slots_of
from dibs.backends.redis.script_replies import FORMAT
from dibs.model import Event, Wakeup

_MARK = b"DI%c" % FORMAT

_EVENTS: dict[bytes, Event] = {event.encode(): event for event in get_args(Event.__value__)}


_HEAD = Struct(f"<{len(_MARK)}s3d")
_LENGTH = Struct("<I")


def wakeups_of(raw: bytes) -> list[Wakeup]:
    """All of them. Raises `struct.error`, `IndexError` or `ValueError` for what is none."""
    found: list[Wakeup] = []
    at = 0
    while at < len(raw) or not found:
        at = _read_one(raw, at, found)
    return found


def _read_one(raw: bytes, at: int, found: list[Wakeup]) -> int:
    """Add the wakeup that begins there; the answer is where it ends."""
    mark, token, granted_at, window = _HEAD.unpack_from(raw, at)
    at += _HEAD.size
    fields: list[bytes] = []
    for _ in range(7):
        start = at + 4
        at = start + _LENGTH.unpack_from(raw, at)[0]
        fields.append(raw[start:at])
    if at > len(raw):
        raise IndexError("cut off")
    name, lease, inbox, kind, slots, detail, proof = fields
    key, event = ledger_key(name), _EVENTS.get(kind)
    if mark != _MARK or key is None or event is None:
        raise ValueError("no wakeup of this format")
    told = granted_at, window, _text(detail), _text(proof)
    found.append(Wakeup(key, _text(lease), _text(inbox), event, int(token), slots_of(slots), *told))
    return at


def _text(raw: bytes) -> str:
    """What others wrote there may be no UTF-8."""
    return raw.decode(errors="replace")


def read_pushes(payload: bytes, inbox: str) -> list[Wakeup]:
    """What was published to an inbox; nothing where it can't be read, as anybody may publish."""
    try:
        wakeups = wakeups_of(payload)
    except (error, IndexError, ValueError, OverflowError):
        return []
    return [wakeup for wakeup in wakeups if wakeup.inbox == inbox]
