"""Commands, replies and notifications as payloads: JSON with the type's name. Pure, for the sandbox.

Everything that travels is about one key, so only what has no other way of telling it carries it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field, fields
from typing import Any

from dibs import model
from dibs.model import Command, Holder, Notification, Reply, Waiter

AGES = 3e8
"""No patience with a workflow that waits is longer: the broker looks after it when it comes first."""

MOST_SLOTS = 1_000
"""Of a pool in slot mode, where each slot is a workflow ID."""


def too_new(what: str, given: int, whose: str, known: int) -> str | None:
    """Why what is of a later release's format is refused, and whose is older; None if it is known."""
    if given <= known:
        return None
    return f"{what} is of format {given}, and {whose} knows {known}: update that first"


FORMAT = 1
"""Of what is said to brokers, and of what they carry over to their next run."""

WITH_BACKLOG = 2
"""Of what a broker carries over where calls are left that it has not applied."""

Packed = dict[str, Any]  # no `type` statement: Temporal's converter would not see through it

COMMANDS = (model.Acquire, model.Renew, model.Release, model.Resize, model.Inspect, model.Revoke)
_REPLIES = (
    model.Granted, model.Queued, model.Refused, model.Gone, model.Renewed, model.Lost, model.Released,
    model.Unknown, model.Revoked, model.Status, model.Failed,
)  # fmt: skip
_TYPES: dict[str, type[Any]] = {each.__name__: each for each in (*COMMANDS, *_REPLIES)}
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind))
    for kind in (*_TYPES.values(), Holder, Waiter, Notification)
}


@dataclass
class Call:
    """A batch of commands about one key."""

    commands: list[Packed]
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
class Answer:
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
    answers: list[Answer] = field(default_factory=list[Answer])
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


def unpack_call(packed: Packed) -> Call:
    """A call that came by a signal. Raises `ValueError` for what is none of ours."""
    known = {name: packed[name] for name in _CALL if name in packed}
    if not _is_list_of_dicts(known.get("commands")):
        raise ValueError("a call has a list of commands")
    for name, kind in _CALL.items():
        if name in known and (type(known[name]) not in kind):
            raise ValueError(f"{name} of a call is {type(known[name]).__name__}")
    call = Call(**known)
    call.at = (call.at[0], call.at[1]) if call.at is not None else None
    return call


def _is_list_of_dicts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(each, dict) for each in found)


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


def pack_command(command: Command) -> Packed:
    """Without its key."""
    return _packed(command, {"key"})


def unpack_command(packed: Packed, key: bytes) -> Command:
    """The way back. Raises `ValueError` for what is no command of ours."""
    kind = _TYPES.get(str(packed.get("is")))
    if kind not in COMMANDS:
        raise ValueError(f"{packed.get('is')!r} is no command")
    found: Command = _unpacked(kind, {**packed, "key": key})
    return found


def pack_reply(reply: Reply) -> Packed:
    """A reply, as it goes back."""
    return _packed(reply, {"key"})


def unpack_reply(packed: Packed, key: bytes) -> Reply:
    """The way back. Raises `ValueError` for what is no reply of ours."""
    kind = _TYPES.get(str(packed.get("is")))
    if kind not in _REPLIES:
        raise ValueError(f"{packed.get('is')!r} is no reply")
    more: Packed = {**packed, "key": key}
    if "holders" in more:
        more["holders"] = tuple(_unpacked(Holder, each) for each in more["holders"])
    if "waiters" in more:
        more["waiters"] = tuple(_unpacked(Waiter, each) for each in more["waiters"])
    found: Reply = _unpacked(kind, more)
    return found


def pack_notification(notification: Notification) -> Packed:
    """Without its key, which is that of the news."""
    return _packed(notification, {"key"})


def unpack_notification(packed: Packed, key: bytes) -> Notification:
    """The way back. Raises `ValueError`."""
    found: Notification = _unpacked(Notification, {**packed, "key": key})
    return found


def _packed(value: Any, without: set[str]) -> Packed:
    found: Packed = {"is": type(value).__name__}
    for name in _FIELDS[type(value)]:
        if name not in without:
            found[name] = _plain(getattr(value, name))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Holder | Waiter):
        return _packed(value, set())
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _unpacked(kind: type[Any], packed: Packed) -> Any:
    """Unknown fields are left out, as a later release may have more of them."""
    known = _FIELDS[kind]
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in packed.items()
        if name in known
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error
