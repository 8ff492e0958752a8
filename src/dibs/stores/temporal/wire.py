"""Messages between clients, workflows and brokers: JSON, with commands as `core.codec` writes them.

A message is about one key, which it names only if the receiver does not know it. Workflow code imports this,
so it does no I/O.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field, fields
from typing import Any

from dibs.core.codec import decode_command
from dibs.model import Command

AGES = 3e8
"""Seconds of the longest waiter ttl of a workflow: the broker looks after it when it comes first."""

TEXTS = 2_000
"""Bytes of JSON that owner, note and the other texts of a command have together, at most. A broker carries
them over to its next run, and a message of Temporal's has 2 MB at most.
"""


def too_new(what: str, given: int, whose: str, known: int) -> str | None:
    """Return why a later format is refused, and what has to be updated; None if the format is known."""
    if given <= known:
        return None
    return f"{what} is of format {given}, and {whose} knows {known}: update that first"


FORMAT = 1
"""Format of what is sent to and by brokers, and of what they carry over to their next run."""

Packed = list[Any]  # no `type` statement: Temporal's converter would not see through it
"""A message as `core.codec` writes it."""


@dataclass
class BrokerCall:
    """A batch of commands about one key."""

    commands: list[Any]
    """As `unpack_command` reads them. An unreadable one fails alone."""
    number: int = 0
    """Set by workflows; the answer repeats it."""
    workflow_id: str = ""
    """The workflow to which the answer is sent, if one calls."""
    run_id: str = ""
    fast: bool = False
    """Free what this workflow holds as soon as the broker sees that its run has closed."""
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
class Waited:
    """Result of a client's wait for one inbox."""

    notifications: list[Packed] = field(default_factory=list[Packed])
    again_in: float | None = 0.0
    """Seconds until the next wait; None if nothing of the inbox is left to wait for."""


@dataclass
class News:
    """A broker's signal to a workflow: answers to calls, notifications, or both."""

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
    format: int = FORMAT


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
    if is_too_long(command):
        raise ValueError(TOO_LONG)
    return command


TOO_LONG = f"owner, note and reason may have {TEXTS} bytes together here, and no more"


def is_too_long(command: Command) -> bool:
    """Whether its texts are longer than `TEXTS`, so that no broker takes it."""
    texts = [getattr(command, each.name) for each in fields(command)]
    return len(json.dumps([each for each in texts if isinstance(each, str)])) > TEXTS


def is_unicode(text: str) -> bool:
    """Whether a message of Temporal's can carry the text. JSON can have half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
