"""Wakeups as the script publishes them: a mark, the format, then a struct (`lua/replies.lua`)."""

from struct import error
from typing import Any, get_args

from leasehold.backends.redis.script_keys import ledger_key
from leasehold.backends.redis.script_reader import Reader
from leasehold.backends.redis.script_replies import FORMAT
from leasehold.model import Event, Wakeup

_MARK = b"LH%c" % FORMAT

_EVENTS: tuple[Event, ...] = get_args(Event.__value__)


def wakeup_of(raw: bytes) -> Wakeup:
    """A wakeup. Raises `struct.error`, `IndexError` or `ValueError` for what is none."""
    if not raw.startswith(_MARK):
        raise ValueError("no wakeup of this format")
    reader = Reader(raw, len(_MARK))
    token, granted_at, window = reader.numbers(3)
    key = ledger_key(reader.bytes())
    lease, inbox = reader.text(), reader.text()
    event: Any = reader.text()
    slots, detail = reader.slots(), reader.text()
    if key is None or event not in _EVENTS or not reader.is_done:
        raise ValueError("no wakeup of ours")
    return Wakeup(key, lease, inbox, event, int(token), slots, granted_at, window, detail)


def read_push(payload: bytes, inbox: str) -> Wakeup | None:
    """What was published to an inbox; None for what can't be read, as anybody may publish."""
    try:
        wakeup = wakeup_of(payload)
    except (error, IndexError, ValueError, OverflowError):
        return None
    return wakeup if wakeup.inbox == inbox else None
