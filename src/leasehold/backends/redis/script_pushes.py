"""Wakeups as the script publishes them, one behind the other: a mark, the format, a struct."""

from struct import error
from typing import Any, get_args

from leasehold.backends.redis.script_keys import ledger_key
from leasehold.backends.redis.script_reader import Reader
from leasehold.backends.redis.script_replies import FORMAT
from leasehold.model import Event, Wakeup

_MARK = b"LH%c" % FORMAT

_EVENTS: tuple[Event, ...] = get_args(Event.__value__)


def wakeups_of(raw: bytes) -> list[Wakeup]:
    """All of them. Raises `struct.error`, `IndexError` or `ValueError` for what is none."""
    reader = Reader(raw, 0)
    found = [_next(reader)]
    while not reader.is_done:
        found.append(_next(reader))
    return found


def _next(reader: Reader) -> Wakeup:
    if reader.raw(len(_MARK)) != _MARK:
        raise ValueError("no wakeup of this format")
    token, granted_at, window = reader.numbers(3)
    key = ledger_key(reader.bytes())
    lease, inbox = reader.text(), reader.text()
    event: Any = reader.text()
    slots, detail = reader.slots(), reader.text()
    if key is None or event not in _EVENTS:
        raise ValueError("no wakeup of ours")
    return Wakeup(key, lease, inbox, event, int(token), slots, granted_at, window, detail)


def read_pushes(payload: bytes, inbox: str) -> list[Wakeup]:
    """What was published to an inbox; nothing where it can't be read, as anybody may publish."""
    try:
        wakeups = wakeups_of(payload)
    except (error, IndexError, ValueError, OverflowError):
        return []
    return [wakeup for wakeup in wakeups if wakeup.inbox == inbox]
