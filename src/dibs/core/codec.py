"""Commands, replies and notifications as plain lists: one table of fields for every store and protocol.

A message is written as `[name, field, …]`: the name of its class in lower case, then its fields in the
order in which `model.py` declares them. The values are None, booleans, numbers, texts and lists of
these, so JSON and MessagePack both carry them. The key travels beside the message, because each store
addresses it in its own form; so does the inbox of a notification. `https://` writes objects instead of
lists: `stores/http/wire.py` makes them from `COMMANDS`, `REPLIES` and `ENTRIES`.

What is read is checked field by field: `ValueError` for anything that does not fit, since anybody may
write to some of the channels that messages come from. A later release may append fields, which must have
defaults: those that are missing at the end get them, and those that are unknown are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from math import inf
from operator import attrgetter
from reprlib import repr as brief
from typing import Any, Literal, get_args, get_origin

from dibs.model import (
    MANY,
    Acquire,
    Command,
    Holder,
    Notification,
    Release,
    Renew,
    Reply,
    Resize,
    Waiter,
)

type Fields = list[Any]
"""One message: its name, then its fields."""

COMMANDS: dict[str, type] = {cls.__name__.lower(): cls for cls in get_args(Command.__value__)}
"""Every command, by its name."""

REPLIES: dict[str, type] = {cls.__name__.lower(): cls for cls in get_args(Reply.__value__)}
"""Every reply, by its name."""

ENTRIES = (Holder, Waiter)
"""What replies list."""

BESIDE = frozenset({"key", "inbox", "mine"})
"""Fields that replies and notifications leave out, as described above; only clients know `mine`."""

INTEGER_LIMIT = 2**53
"""Integers in a message are smaller, so that a double holds them exactly."""


def encode(message: Command | Reply | Notification) -> Fields:
    """Write a message as a list. Values of any type are written as they are: `flaw_of` checks commands."""
    return _SHAPES[type(message)].encode(message)


_TOO_MANY = f"units and capacity must be at most {MANY}"


def flaw_of(command: Command) -> str | None:
    """Return what is wrong with a command, or None. Our own clients send no such command."""
    if isinstance(command, Acquire):
        if type(command.units) is not int or type(command.priority) is not int:
            return "units and priority must be whole numbers"
        if not (0 < command.ttl < inf and 0 < command.waiter_ttl < inf):
            return "ttl and waiter_ttl must be positive"
        if command.units < 1 or not 0 <= command.floor < INTEGER_LIMIT:
            return "units must be at least 1, floor at least 0 and less than 2^53"
        if not 0 <= command.lock_delay < inf:
            return "lock_delay must be finite and at least 0"
        if command.units > MANY or command.capacity > MANY:
            return _TOO_MANY
    elif isinstance(command, Renew):
        if not 0 < command.ttl < inf:
            return "ttl must be positive"
    elif isinstance(command, Resize):
        if command.units < 1:
            return "units must be at least 1"
        if command.units > MANY:
            return _TOO_MANY
    elif isinstance(command, Release) and not (
        0 <= command.retain < inf and 0 <= command.tombstone < inf
    ):
        return "retain and tombstone must be finite and at least 0"
    return None


def decode_command(data: Sequence[Any], key: bytes) -> Command:
    """Read a command about this key. Raises `ValueError`."""
    command: Command = _decode(_COMMANDS, data, {"key": key})
    return command


def decode_reply(data: Sequence[Any], key: bytes) -> Reply:
    """Read a reply to a command about this key. Raises `ValueError`."""
    reply: Reply = _decode(_REPLIES, data, {"key": key, "mine": ()})
    return reply


def decode_notification(data: Sequence[Any], key: bytes, inbox: str) -> Notification:
    """Read a notification that arrived in this inbox. Raises `ValueError`."""
    notification: Notification = _decode(_NOTIFICATIONS, data, {"key": key, "inbox": inbox})
    if notification.token < 0 or any(slot < 0 for slot in notification.slots):
        raise ValueError("tokens and slots are no negative numbers")
    return notification


class _Shape:
    """How one class is written and read."""

    __slots__ = ("_beside", "_class", "_defaults", "_get", "_lists", "_name", "_readers")

    def __init__(self, cls: type, beside: frozenset[str]) -> None:
        listed = [field for field in fields(cls) if field.name not in beside]
        names = [field.name for field in listed]
        self._class = cls
        self._name = cls.__name__.lower()
        self._get: Callable[[Any], tuple[Any, ...]]
        if len(names) > 1:
            self._get = attrgetter(*names)
        else:
            self._get = lambda message: tuple(getattr(message, name) for name in names)
        self._readers = [_reader(field.type) for field in listed]
        self._defaults = [field.default for field in listed]
        self._beside = [
            (number, field.name) for number, field in enumerate(fields(cls)) if field.name in beside
        ]
        self._lists = [
            (number, shape)
            for number, field in enumerate(listed, 1)
            if (shape := _ENTRIES.get(_item(field.type))) is not None
        ]

    def encode(self, message: Any) -> Fields:
        data = [self._name, *self._get(message)]
        for number, shape in self._lists:
            data[number] = [list(shape._get(entry)) for entry in data[number]]
        return data

    def decode(self, values: Sequence[Any], beside: dict[str, Any]) -> Any:
        if len(values) < len(self._readers):
            values = [*values, *self._missing(len(values))]
        found = [read(value) for read, value in zip(self._readers, values, strict=False)]
        for number, name in self._beside:
            found.insert(number, beside[name])
        return self._class(*found)

    def _missing(self, count: int) -> Sequence[Any]:
        """The defaults of the fields after the first `count`."""
        if MISSING in (missing := self._defaults[count:]):
            raise ValueError(f"{self._name} has {len(self._readers)} fields, not {count}")
        return missing


def _decode(shapes: dict[str, _Shape], data: Sequence[Any], beside: dict[str, Any]) -> Any:
    shape = shapes.get(data[0]) if data and type(data[0]) is str else None
    if shape is None:
        raise ValueError(f"no message of this kind: {brief(data[:1])}")
    return shape.decode(data[1:], beside)


# ---- how one field is read ------------------------------------------------------------------------


def _integer(value: Any) -> int:
    if type(value) is int and -INTEGER_LIMIT < value < INTEGER_LIMIT:
        return value
    if type(value) is float and value.is_integer() and abs(value) < INTEGER_LIMIT:
        return int(value)
    raise ValueError(f"no integer: {brief(value)}")


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(_integer(value))
    raise ValueError(f"no number: {brief(value)}")


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    raise ValueError(f"no text: {brief(value)}")


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _flag(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise ValueError(f"neither true nor false: {brief(value)}")


def _integers(value: Any) -> tuple[int, ...]:
    return tuple(map(_integer, _list(value)))


def _list(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise ValueError(f"no list: {brief(value)}")


_READERS: dict[Any, Callable[[Any], Any]] = {
    int: _integer,
    float: _number,
    str: _text,
    bool: _flag,
    str | None: _optional_text,
    tuple[int, ...]: _integers,
}


def _reader(declared: Any) -> Callable[[Any], Any]:
    """Return what reads a field of this type."""
    entry = _ENTRIES.get(_item(declared))
    if entry is not None:
        return lambda value: tuple(entry.decode(_list(item), {}) for item in _list(value))
    plain = getattr(declared, "__value__", declared)
    if get_origin(plain) is Literal:
        return _one_of(frozenset(get_args(plain)))
    return _READERS[declared]


def _one_of(words: frozenset[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(f"none of {', '.join(sorted(words))}: {brief(value)}")

    return read


def _item(declared: Any) -> Any:
    """The type of a tuple's items."""
    return get_args(declared)[0] if get_origin(declared) is tuple else None


_ENTRIES: dict[Any, _Shape] = {}
"""Holders and waiters, each a list of its fields without a name."""
_ENTRIES.update({cls: _Shape(cls, frozenset()) for cls in ENTRIES})

_SHAPES: dict[type, _Shape] = {
    **{cls: _Shape(cls, frozenset({"key"})) for cls in COMMANDS.values()},
    **{cls: _Shape(cls, BESIDE) for cls in (*REPLIES.values(), Notification)},
}
_COMMANDS = {name: _SHAPES[cls] for name, cls in COMMANDS.items()}
_REPLIES = {name: _SHAPES[cls] for name, cls in REPLIES.items()}
_NOTIFICATIONS = {"notification": _SHAPES[Notification]}
