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


FORMAT = 2
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
    """Of a workflow's call: its answer names it."""
    workflow_id: str = ""
    """Where the answer goes, of a workflow's call."""
    run_id: str = ""
    fast: bool = False
    """What this workflow holds is free as soon as the broker sees that its run is closed."""
    at: tuple[float, int] | None = None
    """Now and the stamp, in tests that move the time by hand; refused unless the broker began so."""
    format: int = FORMAT


@dataclass
class BrokerAnswer:
    """What came of a call."""

    replies: list[Packed]
    number: int = 0
    now: float = 0.0
    """The broker's time when it was applied."""
    format: int = FORMAT


@dataclass
class News:
    """What is brought to a mailbox or to a workflow: answers to calls, pushes, or both."""

    key: str
    """Base64: any bytes."""
    notifications: list[Packed] = field(default_factory=list[Packed])
    answers: list[BrokerAnswer] = field(default_factory=list[BrokerAnswer])
    format: int = FORMAT


@dataclass
class BrokerInput:
    """What a broker's run begins with."""

    key: str
    """Base64: any bytes."""
    state: dict[str, Any] | None = None
    """What the run before it left."""
    by_hand: bool = False
    """In tests: callers tell it the time."""
    format: int = FORMAT


def unpack_call(packed: dict[str, Any]) -> BrokerCall:
    """A call that came by a signal. Raises `ValueError` for what is none of ours."""
    known = {name: packed[name] for name in _CALL if name in packed}
    if not isinstance(known.get("commands"), list):
        raise ValueError("a call has a list of commands")
    for name, kind in _CALL.items():
        if name in known and (type(known[name]) not in kind):
            raise ValueError(f"{name} of a call is {type(known[name]).__name__}")
    call = BrokerCall(**known)
    call.at = (call.at[0], call.at[1]) if call.at is not None else None
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
    """Any bytes, as a payload may carry them."""
    return urlsafe_b64encode(key).decode()


def bytes_of(text: str) -> bytes:
    """The way back. Raises `ValueError`."""
    return urlsafe_b64decode(text)


def unpack_command(packed: Any, key: bytes) -> Command:
    """A command that was sent to a broker. Raises `ValueError` for what might do harm in its book."""
    if not isinstance(packed, list):
        raise ValueError(f"no list: {type(packed).__name__}")
    command = decode_command(packed, key)
    for each in fields(command):
        value = getattr(command, each.name)
        if isinstance(value, str) and not is_unicode(value):
            raise ValueError(f"{each.name} is not valid Unicode")
    return command
