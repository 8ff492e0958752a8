"""The options of an acquire in workflow code, their defaults and their checks."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal, Protocol, TypedDict, Unpack

from temporalio import workflow

from dibs.config import UNSET, Duration, Unset, check_priority, optional_seconds, safe_ttl, seconds
from dibs.errors import UnsafeTiming
from dibs.stores.temporal import ids
from dibs.temporal.errors import Misused, checked

DEFAULT_LEASE = timedelta(minutes=10)
"""How long a permit lasts without a renewal."""
DEFAULT_BACKOFF = timedelta(seconds=5)
"""The pause after the first round of probes that found every slot taken. Each next one is twice as long."""
MAX_BACKOFF = timedelta(minutes=1)
"""The longest pause."""

MIN_RENEWED_TTL = 3.0
"""Seconds. Temporal's timers come up to a second late, and a renewal must come well before the lease ends."""
MAX_HOLD = 86_400.0
"""Seconds that a permit is renewed at most, or `MAX_RENEWALS` renewals if that is less."""
MAX_RENEWALS = 1000
"""Each renewal is a signal, and adds twelve events to the holder's history."""
GRACE = 10.0
"""Seconds after its last moment in which the server ends a permit that no worker has ended."""
CONFIRM_TIMEOUT = 10.0
"""Seconds that a release waits for the permit's end."""
REPORT_TIMEOUT = 30.0
"""Seconds that a new permit may take to report. After that, no worker serves its queue."""
MIN_REPORT_TIMEOUT = 5.0
"""The same, however little is left of `wait`."""


def named_queue(explicit: str | None = None) -> str | None:
    """The given task queue, else `TEMPORAL_TASK_QUEUE`. None if neither names one.

    In a workflow that variable is its worker's. A replay elsewhere can find another queue, because Temporal
    does not compare the queue of a child's start. Raises `ValueError` for an empty name.
    """
    with workflow.unsafe.sandbox_unrestricted() if workflow.in_workflow() else nullcontext():
        return ids.named_queue(explicit)


type OnHolderClose = Literal["fast", "safe"]


class PermitPool(Protocol):
    """The slots of a resource, and the rules for all their permits. A `Semaphore` is one."""

    kind: ClassVar[str]
    resource: str
    capacity: int
    task_queue: str | None
    armed: bool
    quarantine: float
    on_holder_close: OnHolderClose


@dataclass(frozen=True, kw_only=True, slots=True)
class AcquireOptions:
    """Checked options of one acquire. Times are in seconds; `wait` None is without limit."""

    ttl: float
    wait: float | None
    backoff: float
    max_backoff: float
    units: int
    priority: int
    note: str
    auto_renew: bool
    max_hold: float

    @classmethod
    def of(cls, **asked: "Unpack[Asked]") -> "AcquireOptions":
        """Check the options and fill in the defaults. Raises `Misused`."""
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
            return cls(
                ttl=safe_ttl(min(ttl, max_hold)),  # no lease lasts longer than it may be held
                wait=_wait(asked),
                backoff=backoff,
                max_backoff=max_backoff,
                units=units,
                priority=priority,
                note=note,
                auto_renew=auto_renew,
                max_hold=max_hold,
            )


class Tried(TypedDict, total=False):
    """Options of `try_acquire()`. `lease` is a ttl that is not renewed."""

    ttl: Duration | None
    units: int
    priority: int
    note: str
    auto_renew: bool
    max_hold: Duration | None
    lease: Duration | None


class Asked(Tried, total=False):
    """Options of `acquire()`. `timeout` is another word for `wait`."""

    wait: Duration | Unset | None
    backoff: Duration | None
    max_backoff: Duration | None
    timeout: Duration | None


def refuse_waiting(asked: Mapping[str, object]) -> None:
    """Raises `Misused` for options that `try_acquire()` does not take."""
    unknown = sorted(asked.keys() - Tried.__optional_keys__)
    if unknown:
        raise Misused(f"try_acquire() takes no {unknown[0]}=: it never waits")


def _ttl(asked: Asked, *, auto_renew: bool) -> float:
    ttl, lease = asked.get("ttl"), asked.get("lease")
    if ttl is not None and lease is not None:
        raise ValueError("lease= is a ttl that is not renewed: give ttl= or lease=")
    given = ttl if ttl is not None else lease
    found = safe_ttl(DEFAULT_LEASE if given is None else given)
    if auto_renew and found < MIN_RENEWED_TTL:
        raise UnsafeTiming(
            f"ttl is {found:g} s: Temporal's timers come up to a second late, so renewals need a ttl of "
            f"{MIN_RENEWED_TTL:g} s at least; or give auto_renew=False"
        )
    return found


def _wait(asked: Asked) -> float | None:
    wait, timeout = asked.get("wait", UNSET), asked.get("timeout")
    if not isinstance(wait, Unset) and timeout is not None:
        raise ValueError("wait= and timeout= are the same thing: give one of them")
    return optional_seconds(timeout if isinstance(wait, Unset) else wait, "wait")


def _pauses(asked: Asked) -> tuple[float, float]:
    """The pause after the first round of failed tries, and the longest."""
    backoff, longest = asked.get("backoff"), asked.get("max_backoff")
    first = seconds(DEFAULT_BACKOFF if backoff is None else backoff, "backoff")
    if first <= 0:
        raise ValueError("backoff is 0: a waiter that never pauses fills its history at once")
    if longest is None:
        return first, max(MAX_BACKOFF.total_seconds(), first)
    most = seconds(longest, "max_backoff")
    if most <= 0 or (backoff is not None and most < first):
        raise ValueError(
            f"max_backoff is {most:g} s and backoff {first:g} s: it is the longest pause"
        )
    return min(first, most), most


def _max_hold(given: Duration | None, ttl: float, *, auto_renew: bool) -> float:
    """Limited, because renewals fill the histories of the permit and of its holder."""
    most = ttl * MAX_RENEWALS / 2
    if given is None:
        return max(min(MAX_HOLD, most), ttl)
    found = seconds(given, "max_hold")
    if found <= 0:
        raise ValueError("max_hold is 0: the permit would be lost before it is used")
    if auto_renew and found > most:
        raise ValueError(
            f"max_hold is {found:g} s and ttl {ttl:g} s, which takes {found / ttl * 2:.0f} renewals, each "
            f"in the histories of both workflows: give a ttl of at least {found * 2 / MAX_RENEWALS:g} s"
        )
    return found
