"""What an acquire in workflow code asks for, checked."""

from dataclasses import dataclass

from leasehold.config import (
    UNSET,
    Duration,
    Unset,
    check_priority,
    optional_seconds,
    safe_ttl,
    seconds,
)
from leasehold.errors import UnsafeTiming
from leasehold.temporal import defaults
from leasehold.temporal.failures import checked


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """All in seconds; None is without end."""

    ttl: float = defaults.LEASE
    wait: float | None = None
    backoff: float = defaults.BACKOFF
    max_backoff: float = defaults.MAX_BACKOFF
    units: int = 1
    priority: int = 0
    note: str = ""
    auto_renew: bool = True
    max_hold: float = defaults.MAX_HOLD


def terms(
    *,
    ttl: Duration | None = None,
    wait: Duration | Unset | None = UNSET,
    backoff: Duration | None = None,
    max_backoff: Duration | None = None,
    units: int = 1,
    priority: int = 0,
    note: str = "",
    auto_renew: bool = True,
    max_hold: Duration | None = None,
    lease: Duration | None = None,
    timeout: Duration | None = None,
) -> Terms:
    """As they were given; `lease` and `timeout` are other words for `ttl` and `wait`. Raises `Misused`."""
    with checked():
        if ttl is not None and lease is not None:
            raise ValueError("ttl= and lease= are the same thing: give one of them")
        if not isinstance(wait, Unset) and timeout is not None:
            raise ValueError("wait= and timeout= are the same thing: give one of them")
        given = ttl if ttl is not None else lease
        found = safe_ttl(defaults.LEASE if given is None else given)
        if auto_renew and found < defaults.SHORTEST_RENEWED:
            raise UnsafeTiming(
                f"ttl is {found:g} s: Temporal's timers come up to a second late, so renewals need a ttl of "
                f"{defaults.SHORTEST_RENEWED:g} s at least; or give auto_renew=False"
            )
        pause = seconds(defaults.BACKOFF if backoff is None else backoff, "backoff")
        if pause <= 0:
            raise ValueError("backoff is 0: a waiter that never pauses fills its history at once")
        longest = seconds(
            defaults.MAX_BACKOFF if max_backoff is None else max_backoff, "max_backoff"
        )
        if type(units) is not int or units < 1:
            raise ValueError(f"units is {units!r}: give an int from 1")
        check_priority(priority)
        return Terms(
            ttl=found,
            wait=optional_seconds(timeout if isinstance(wait, Unset) else wait, "wait"),
            backoff=pause,
            max_backoff=max(longest, pause) if max_backoff is None else longest,
            units=units,
            priority=priority,
            note=str(note),
            auto_renew=bool(auto_renew),
            max_hold=_max_hold(max_hold, found, auto_renew=auto_renew),
        )


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
