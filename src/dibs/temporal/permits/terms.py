"""What an acquire in workflow code asks for, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypedDict, Unpack

from dibs.config import UNSET, Duration, Unset, check_priority, optional_seconds, safe_ttl, seconds
from dibs.errors import UnsafeTiming
from dibs.temporal import defaults
from dibs.temporal.failures import Misused, checked

type OnHolderClose = Literal["fast", "safe"]


class Pool(Protocol):
    """The slots of a resource, and what holds of their permits."""

    kind: ClassVar[str]
    resource: str
    capacity: int
    task_queue: str | None
    armed: bool
    quarantine: float
    on_holder_close: OnHolderClose


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """All in seconds; None is without end."""

    ttl: float
    wait: float | None
    backoff: float
    max_backoff: float
    units: int
    priority: int
    note: str
    auto_renew: bool
    max_hold: float


class Tried(TypedDict, total=False):
    """What `try_acquire()` may be told; `lease` is a ttl that is not renewed."""

    ttl: Duration | None
    units: int
    priority: int
    note: str
    auto_renew: bool
    max_hold: Duration | None
    lease: Duration | None


class Asked(Tried, total=False):
    """What `acquire()` may be told; `timeout` is another word for `wait`."""

    wait: Duration | Unset | None
    backoff: Duration | None
    max_backoff: Duration | None
    timeout: Duration | None


def refuse_waiting(asked: Mapping[str, object]) -> None:
    """Raises `Misused` where `try_acquire()` is told more than it may be."""
    unknown = sorted(asked.keys() - Tried.__optional_keys__)
    if unknown:
        raise Misused(f"try_acquire() takes no {unknown[0]}=: it never waits")


def terms(**asked: Unpack[Asked]) -> Terms:
    """As they were given. Raises `Misused`."""
    with checked():
        unknown = sorted(asked.keys() - Asked.__optional_keys__)
        if unknown:
            raise TypeError(f"acquire() takes no {unknown[0]}=")
        fixed = asked.get("lease") is not None
        auto_renew, note = asked.get("auto_renew", not fixed), asked.get("note", "")
        if not isinstance(auto_renew, bool):
            raise TypeError(f"auto_renew is {auto_renew!r}: give True or False")
        if not isinstance(note, str):
            raise TypeError(f"note is {note!r}: give a text")
        ttl = _ttl(asked, auto_renew=auto_renew)
        max_hold = _max_hold(asked.get("max_hold"), ttl, auto_renew=auto_renew)
        if fixed and not auto_renew and asked.get("max_hold") is None:
            max_hold = ttl
        backoff, max_backoff = _pauses(asked)
        units = asked.get("units", 1)
        if type(units) is not int or units < 1:
            raise ValueError(f"units is {units!r}: give an int from 1")
        priority = asked.get("priority", 0)
        check_priority(priority)
        return Terms(
            ttl=safe_ttl(min(ttl, max_hold)),  # no lease outlives what it is held for
            wait=_wait(asked),
            backoff=backoff,
            max_backoff=max_backoff,
            units=units,
            priority=priority,
            note=note,
            auto_renew=auto_renew,
            max_hold=max_hold,
        )


def _ttl(asked: Asked, *, auto_renew: bool) -> float:
    ttl, lease = asked.get("ttl"), asked.get("lease")
    if ttl is not None and lease is not None:
        raise ValueError("lease= is a ttl that is not renewed: give ttl= or lease=")
    given = ttl if ttl is not None else lease
    found = safe_ttl(defaults.DEFAULT_LEASE if given is None else given)
    if auto_renew and found < defaults.SHORTEST_RENEWED:
        raise UnsafeTiming(
            f"ttl is {found:g} s: Temporal's timers come up to a second late, so renewals need a ttl of "
            f"{defaults.SHORTEST_RENEWED:g} s at least; or give auto_renew=False"
        )
    return found


def _wait(asked: Asked) -> float | None:
    wait, timeout = asked.get("wait", UNSET), asked.get("timeout")
    if not isinstance(wait, Unset) and timeout is not None:
        raise ValueError("wait= and timeout= are the same thing: give one of them")
    return optional_seconds(timeout if isinstance(wait, Unset) else wait, "wait")


def _pauses(asked: Asked) -> tuple[float, float]:
    """The first pause after a round of tries in vain, and the longest."""
    backoff, longest = asked.get("backoff"), asked.get("max_backoff")
    first = seconds(defaults.DEFAULT_BACKOFF if backoff is None else backoff, "backoff")
    if first <= 0:
        raise ValueError("backoff is 0: a waiter that never pauses fills its history at once")
    if longest is None:
        return first, max(defaults.MAX_BACKOFF.total_seconds(), first)
    most = seconds(longest, "max_backoff")
    if most <= 0 or (backoff is not None and most < first):
        raise ValueError(
            f"max_backoff is {most:g} s and backoff {first:g} s: it is the longest pause"
        )
    return min(first, most), most


def _max_hold(given: Duration | None, ttl: float, *, auto_renew: bool) -> float:
    """Renewals fill the histories of the permit and of its holder, so they have an end."""
    most = ttl * defaults.RENEWALS / 2
    if given is None:
        return max(min(defaults.MAX_HOLD, most), ttl)
    found = seconds(given, "max_hold")
    if found <= 0:
        raise ValueError("max_hold is 0: the permit would be lost before it is used")
    if auto_renew and found > most:
        raise ValueError(
            f"max_hold is {found:g} s and ttl {ttl:g} s, which takes {found / ttl * 2:.0f} renewals, each "
            f"in the histories of both workflows: give a ttl of at least {found * 2 / defaults.RENEWALS:g} s"
        )
    return found
