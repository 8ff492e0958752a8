"""Bugs of those who hold several: what a failure leaves behind, and who waits for whom."""

from dataclasses import replace
from typing import Any

from dibs.locks.allof import AllOfAttempt, LeasesBase
from dibs.model import Acquire, Command, Reply
from tests.torture.bugs.bug import Apply, Bug, patched, twisted
from tests.torture.bugs.readwrite import nobody_looks

ALLOF = ("allof",)


_kept: list[Any] = []


async def the_first_stay(self: AllOfAttempt, wait: float | None) -> list[Any]:
    """What was had when the time was over."""
    try:
        await self._gather(wait)
    except BaseException:
        _kept.append(self._held)
        raise
    return self._held


def as_named(named: Any) -> list[Any]:
    return list({part.key: part for part in named}.values())


def of_the_first(self: LeasesBase[Any], needs: Any = 0) -> None:
    """One for all."""
    self._once[0].ensure(needs)


def with_the_first(self: Any) -> bool:
    """The first release leaves no level."""
    self._levels.clear()
    return True


def no_delay(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, lock_delay=0.0) if isinstance(command, Acquire) else command)


ATTEMPT = "allof.AllOfAttempt"

BUGS = {
    "AllOf leaves what it had": Bug(
        frozenset({"left"}), ALLOF, patches=patched(f"{ATTEMPT}.run", the_first_stay)
    ),
    "AllOf takes in the order of its arguments": Bug(
        frozenset({"error", "stuck"}), ALLOF, patches=patched("allof.in_order", as_named)
    ),
    "AllOf asks the first of its leases only": Bug(
        frozenset({"deadline", "overlap"}),
        ALLOF,
        patches=patched("allof.LeasesBase.ensure", of_the_first),
    ),
    "the first release ends a reentrant hold": Bug(
        frozenset({"overlap", "error"}),
        ("reentrant",),
        patches=patched("reentrant.Depth.leave", with_the_first),
    ),
    "circles are not looked for": Bug(
        frozenset({"stuck"}),
        ("crossed",),
        patches=patched("deadlock.DeadlockDetector._look", nobody_looks),
    ),
    "no lock delay": Bug(frozenset({"early"}), ("delayed",), store=twisted(no_delay)),
}
