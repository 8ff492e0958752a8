"""The ledger as a Lua script that applies a batch in one call, and what is said to it.

The script is `lua/*.lua`, one after the other: what `core/*.py` says, said again where it is atomic. See
`lua/call.lua` for the shape of a call, `lua/book.lua` for what lies in Redis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from struct import Struct, error
from typing import Any, get_args

from dibs.model import Command, Event, Reply, Wakeup
from dibs.stores.redis.script_commands import packed
from dibs.stores.redis.script_keys import (
    EPOCH,
    MATCH_ALL,
    ledger_key,
    store_key,
)
from dibs.stores.redis.script_replies import FORMAT, check_format, reply_of, slots_of

__all__ = (
    "MATCH_ALL",
    "SHA",
    "SOURCE",
    "Call",
    "call_for",
    "ledger_key",
    "read_answer",
    "read_pushes",
    "store_key",
)

_SHORT_WAY = ("forms", "short", "call")
"""Where most calls end."""

_LONG_WAY = (
    "values",
    "book",
    "slots",
    "queue",
    "flush",
    "replies",
    "turn",
    "views",
    "flaws",
    "ledger",
)
"""`core/*.py`, in the order in which one needs the other."""


def _source() -> bytes:
    folder = files("dibs.stores.redis") / "lua"

    def read(*names: str) -> bytes:
        return b"\n".join((folder / f"{name}.lua").read_bytes() for name in names)

    # Within a function, so that what is not needed is not even defined.
    whole = b"local function whole_ledger()\n\n%b\nend\n" % read(*_LONG_WAY)
    hand_on = read("timing", "pushes", "handing")
    return b"\n".join((read(*_SHORT_WAY), hand_on, whole, read("batch")))


SOURCE = _source()
SHA = sha1(SOURCE, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Call:
    """One EVALSHA: its keys and its arguments."""

    keys: list[bytes]
    args: list[bytes]


def call_for(
    commands: Sequence[Command],
    *,
    inbox: str,
    now: float | None = None,
    stamp: int | None = None,
    holdoff: float = 0.0,
) -> Call:
    """What to send for a batch.

    `now` and `stamp` are for tests that move the time; otherwise the server's clock tells it.
    `holdoff`: nothing is granted for that many seconds after the server came back empty.
    """
    keys = [store_key(command.key) for command in commands]
    args = [inbox.encode(), *[packed(command) for command in commands]]
    if now is not None or holdoff > 0:
        args += [_number(now), _number(stamp), _number(holdoff or None)]
    if holdoff > 0:
        keys.append(EPOCH)
    return Call(keys, args)


def _number(value: float | None) -> bytes:
    return b"" if value is None else repr(value).encode()


def read_answer(raw: Any, commands: Sequence[Command]) -> tuple[list[Reply], list[Wakeup]]:
    """The replies to a batch, and the wakeups for the inbox that it was sent for.

    Raises `IncompatibleVersion` where books of another format lie there: nothing was applied then.
    """
    if type(raw) is not list:  # to a lone command that went the short way
        return [reply_of(raw, commands[0])], []
    check_format(raw)
    replies = [reply_of(answer, command) for answer, command in zip(raw, commands, strict=False)]
    return replies, [wakeup for record in raw[len(commands) :] for wakeup in wakeups_of(record)]


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
