"""Options of locks, their units, and how they are read from text."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from math import inf, isnan
from typing import Any, ClassVar, Final, cast, final

from dibs.core.timing import MIN_TTL, margin
from dibs.errors import UnsafeTiming

type Duration = float | int | str | timedelta
"""Seconds, a `timedelta`, or a text such as "30s", "1.5h", "250ms"."""

FOREVER = "forever"
"""The text for no limit, where settings are texts."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", re.ASCII)


@final
class Unset:
    """No value was given, which is not the same as None."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


def seconds(value: Duration, what: str = "a duration") -> float:
    """A duration in seconds.

    Raises `TypeError` for anything else, a bool too, and `ValueError` if it is negative, NaN or unreadable.
    """
    if type(value) is float or (isinstance(value, int | float) and not isinstance(value, bool)):
        result = float(value)
    elif isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str):
        result = _read(value, what)
    else:
        raise TypeError(f'{what} is {value!r}: give seconds, a timedelta, or a text such as "30s"')
    if isnan(result):
        raise ValueError(f"{what} is NaN, which is no amount of time")
    if result < 0:
        raise ValueError(f"{what} is {value!r}: it can't be negative")
    return result


def _read(text: str, what: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f'{what} is {text!r}: write it as "30s", "5m", "1.5h" or "250ms"')
    return float(match[1]) * _UNITS[match[2] or "s"]


def optional_seconds(value: Duration | None, what: str) -> float | None:
    """A duration in seconds; None for no limit, which is "forever" as a text."""
    if value is None or value == FOREVER:
        return None
    result = seconds(value, what)
    return None if result == inf else result


def safe_ttl(value: Duration) -> float:
    """A ttl in seconds. Raises `UnsafeTiming` if it is shorter than its margin, or infinite."""
    ttl = seconds(value, "ttl")
    if not MIN_TTL <= ttl < inf:
        raise UnsafeTiming(
            f"ttl is {ttl:g} s: it must be finite and at least {MIN_TTL:g} s, because a holder stops "
            f"at least {margin(MIN_TTL):g} s before its lease expires in the store"
        )
    return ttl


def whole(text: str) -> int:
    """Read a whole number. Raises `ValueError` for other texts."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("write a whole number, such as 7") from None


_FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def flag(text: str) -> bool:
    """Read a yes or a no. Raises `ValueError` for other texts."""
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise ValueError("write true or false")
    return value


def _limit(text: str) -> str | None:
    return None if text.strip().lower() in ("", "none", FOREVER) else text


type Readers = Mapping[str, Callable[[str], Any]]
"""How each option of a config is read from a text, in a variable or in the file."""

_BY_TYPE: Mapping[Any, Callable[[str], Any]] = {bool: flag, int: whole, Duration | None: _limit}

_EXAMPLES: Mapping[Any, str] = {bool: "True or False", int: "an int", str: "a text"}


def readers_of(config: Any, **others: Callable[[str], Any]) -> Readers:
    """The readers of a config class by the types of its fields, and `others`."""
    types = {field.name: field.type for field in fields(config)}
    return {name: others.get(name) or _BY_TYPE.get(kind, str) for name, kind in types.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class LockConfig:
    """Options of a lock, for `Lock.from_config`, which reads no environment. Durations are in seconds."""

    ttl: Duration = 30.0
    """Seconds that the store keeps the lease without renewal."""
    wait: Duration | None = None
    """Seconds to wait in the queue; None: no limit, 0: one try."""
    priority: int = 0
    """Higher goes first in the queue."""
    note: str = ""
    """A note for people, shown to waiters."""
    label: str = ""
    """Added to the owner's name, for people."""
    auto_renew: bool = True
    """Renew in the background while held."""
    max_hold: Duration | None = None
    """Seconds after which renewal stops, whatever the body does."""
    reentrant: bool = False
    """The holder can acquire again; the last release gives it up."""
    lock_delay: Duration = 0.0
    """Seconds that it stays closed after a lease expired (not after a release)."""
    detect_deadlocks: bool = True
    """Look for circles of waiters, and raise `Deadlock`."""
    _readers: ClassVar[Readers]
    _for_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "ttl", safe_ttl(self.ttl))
        set_(self, "wait", optional_seconds(self.wait, "wait"))
        set_(self, "max_hold", optional_seconds(self.max_hold, "max_hold"))
        if self.max_hold == 0:
            raise UnsafeTiming("max_hold is 0: the lease would be lost before it is used")
        set_(self, "lock_delay", safe_lock_delay(self.lock_delay))
        for field in fields(self):
            value, kind = getattr(self, field.name), cast(type, field.type)
            if kind not in _EXAMPLES:
                continue
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise TypeError(f"{field.name} is {value!r}: give {_EXAMPLES[kind]}")
        check_priority(self.priority)


LockConfig._readers = READERS = readers_of(LockConfig)


MAX_PRIORITY = 2**30 - 1
"""Every store can hold this, and its negative. Upgrades use priorities beyond it."""


def check_priority(priority: int) -> None:
    """Raise `ValueError` for a priority that not every store can hold."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority is {priority}: give an int from -(2**30 - 1) to 2**30 - 1")


LONGEST_LOCK_DELAY = 600.0
"""Seconds. Nobody can end the delay after a crash; a holder that notices a loss later needs fencing."""


def safe_lock_delay(value: Duration) -> float:
    """A lock delay in seconds. Raises `UnsafeTiming` if it is too long."""
    delay = seconds(value, "lock_delay")
    if delay > LONGEST_LOCK_DELAY:
        raise UnsafeTiming(
            f"lock_delay is {delay:g} s: it cannot be ended early, so it must be at most "
            f"{LONGEST_LOCK_DELAY:g} s. Compare fencing tokens to reject later writes"
        )
    return delay
