"""The ledger as a Lua script that applies a batch in one call, and what is said to it.

The script is `lua/*.lua`, one after the other: what `core/*.py` says, said again where it is atomic. See
`lua/call.lua` for the shape of a call, `lua/book.lua` for what lies in Redis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Any

from dibs.backends.redis.script_commands import packed
from dibs.backends.redis.script_keys import (
    EPOCH,
    MATCH_ALL,
    ledger_key,
    store_key,
)
from dibs.backends.redis.script_pushes import read_pushes, wakeups_of
from dibs.backends.redis.script_replies import check_format, reply_of
from dibs.model import Command, Reply, Wakeup

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
    folder = files("dibs.backends.redis") / "lua"

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
