"""Payloads of brokers, mailboxes and workflows: JSON, and in it messages as `core.codec` writes them.

Everything that travels is about one key, so only what has no other way of telling it carries it. Pure, for
the sandbox.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field, fields
from typing import Any

from dibs.core.codec import decode_command
from dibs.model import Command
from dibs.stores.temporal.protocol.owners import is_unicode

AGES = 3e8
"""Seconds of the longest waiter ttl of a workflow: the broker looks after it when it comes first."""

MOST_SLOTS = 1_000
"""Slots of a pool in slot mode, at most. Each is a workflow ID."""


def too_new(what: str, given: int, whose: str, known: int) -> str | None:
    """Return why a later format is refused, and what has to be updated; None if the format is known."""
    if given <= known:
        return None
    return f"{what} is of format {given}, and {whose} knows {known}: update that first"


FORMAT = 3
"""Format of what is sent to and by brokers, and of what they carry over to their next run."""

WITH_BACKLOG = 3
"""Format of what a broker carries over if calls are left that it has not applied."""

Packed = list[Any]  # no `type` statement: Temporal's converter would not see through it
"""A message as `core.codec` writes it."""


@dataclass
class BrokerCall:
    """A batch of commands about one key."""

    commands: list[Any]
    """What `unpack_command` reads; anything else fails alone."""
    number: int = 0
    """Set by workflows; the answer repeats it."""
    workflow_id: str = ""
    """The workflow to which the answer is sent, if one calls."""
    run_id: str = ""
    fast: bool = False
    """Free what this workflow holds as soon as the broker sees that its run has closed."""
    at: tuple[float, int] | None = None
    """Now and the stamp, in tests that set the time; refused unless the broker was started for that."""
    format: int = FORMAT


@dataclass
class BrokerAnswer:
    """The replies to a call."""

    replies: list[Packed]
    number: int = 0
    now: float = 0.0
    """The broker's time when the call was applied."""
    format: int = FORMAT


@dataclass
class News:
    """What a broker sends to a mailbox or a workflow: answers to calls, notifications, or both."""

    key: str
    """In base64, as a key may have any bytes."""
    notifications: list[Packed] = field(default_factory=list[Packed])
    answers: list[BrokerAnswer] = field(default_factory=list[BrokerAnswer])
    format: int = FORMAT


@dataclass
class BrokerInput:
    """The input of a broker's run."""

    key: str
    """In base64, as a key may have any bytes."""
    state: dict[str, Any] | None = None
    """The state that the run before it left."""
    by_hand: bool = False
    """In tests: callers set the time."""
    format: int = FORMAT


def unpack_call(packed: dict[str, Any]) -> BrokerCall:
    """Read a call that came by a signal. Raises `ValueError`."""
    known = {name: packed[name] for name in _CALL if name in packed}
    if not isinstance(known.get("commands"), list):
        raise ValueError("a call has a list of commands")
    for name, kind in _CALL.items():
        if name in known and (type(known[name]) not in kind):
            raise ValueError(f"{name} of a call is {type(known[name]).__name__}")
    call = BrokerCall(**known)
    if call.at is not None:
        if len(call.at) != 2:
            raise ValueError("at of a call is not a time and a stamp")
        call.at = (call.at[0], call.at[1])
    return call


_CALL: dict[str, tuple[type[Any], ...]] = {
    "commands": (list,),
    "number": (int,),
    "workflow_id": (str,),
    "run_id": (str,),
    "fast": (bool,),
    "at": (list, type(None)),
    "format": (int,),
}


def text_of(key: bytes) -> str:
    """Write bytes in base64, for a payload."""
    return urlsafe_b64encode(key).decode()


def bytes_of(text: str) -> bytes:
    """Read what `text_of` wrote. Raises `ValueError`."""
    return urlsafe_b64decode(text)


def unpack_command(packed: Any, key: bytes) -> Command:
    """Read a command that was sent to a broker. Raises `ValueError` for anything that could harm its book."""
    if not isinstance(packed, list):
        raise ValueError(f"no list: {type(packed).__name__}")
    command = decode_command(packed, key)
    for each in fields(command):
        value = getattr(command, each.name)
        if isinstance(value, str) and not is_unicode(value):
            raise ValueError(f"{each.name} is not valid Unicode")
    return command
