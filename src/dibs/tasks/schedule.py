"""Schedules of tasks. Each moment at which one is due is a *tick*, the same for all processes.

Moments are whole microseconds since 1970, by the wall clock. Cron expressions are read as Debian's cron
reads them; the library is cronsim.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dibs.config import Duration, seconds

if TYPE_CHECKING:
    from cronsim import CronSim


SECOND = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(when: datetime) -> int:
    """The moment of a time with a zone."""
    # in UTC first: differences within one zone ignore that its offset changes
    return (when.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def time_of(moment: int, zone: tzinfo = UTC) -> datetime:
    """A moment as a time in a zone."""
    return (_EPOCH + timedelta(microseconds=moment)).astimezone(zone)


def written(moment: int) -> str:
    """A moment as a part of a name: `2026-11-22T02:00:00Z`."""
    return time_of(moment).isoformat().replace("+00:00", "Z")


SHORTEST = 0.1
"""Seconds between two ticks, at least."""


class Schedule(Protocol):
    """An endless row of ticks."""

    @property
    def period(self) -> float | None:
        """Seconds between any two ticks; None if that varies."""

    def after(self, moment: int) -> int:
        """The first tick later than a moment."""


class Every:
    """Ticks at the multiples of a period since 1970 (UTC), each `offset` later."""

    def __init__(self, period: Duration, offset: Duration = 0) -> None:
        if callable(period):
            raise TypeError('write @tasks.every("60s"), with the time between two runs')
        self.period: float = seconds(period, "every")
        late = seconds(offset, "offset")
        if not SHORTEST <= self.period < float("inf"):
            raise ValueError(f"every is {self.period:g} s: give at least {SHORTEST:g} s")
        if late >= self.period:
            raise ValueError(
                f"offset is {late:g} s: it must be less than the period, {self.period:g} s"
            )
        self._period = round(self.period * SECOND)
        self._offset = round(late * SECOND)

    def after(self, moment: int) -> int:
        """The first tick later than a moment."""
        since = moment - self._offset
        return (since // self._period + 1) * self._period + self._offset

    def __str__(self) -> str:
        late = f", {self._offset / SECOND:g} s late" if self._offset else ""
        return f"every {self.period:g} s{late}"


def ticks_between(schedule: Schedule, after: int, until: int) -> list[int]:
    """The ticks later than `after`, up to and with `until`."""
    ticks: list[int] = []
    tick = schedule.after(after)
    while tick <= until:
        ticks.append(tick)
        tick = schedule.after(tick)
    return ticks


_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

FORM = "minute hour day-of-month month day-of-week, with seconds in front if there are six"


class Cron:
    """Ticks at the local times that an expression names; in UTC where no zone is named.

    When clocks go forward, what names a minute and an hour in the gap is due right after it; when they
    go back, it is due once. What has `*` in one of these, and what has six fields, goes on by real time:
    nothing in the gap, and twice in the hour that comes twice.
    """

    period = None

    def __init__(self, expression: str, zone: str | tzinfo | None = None) -> None:
        if not isinstance(expression, str):
            raise TypeError(f'cron is {expression!r}: give a text such as "*/5 * * * *" ({FORM})')
        self.expression: str = expression
        self.zone: tzinfo | None = None if zone is None else zone_of(zone)
        self._plan = _NICKNAMES.get(expression.strip().lower(), expression)
        self._check()

    def placed(self, zone: tzinfo) -> "Cron":
        """The same in that zone, unless it has one of its own."""
        return self if self.zone is not None else Cron(self.expression, zone)

    def after(self, moment: int) -> int:
        """The first tick later than a moment."""
        for when in _simulated(self._plan, moment, self.zone):
            tick = moment_of(when)
            # around a change of the clocks it may give one twice, or an earlier one
            if tick > moment:
                return tick
        raise ValueError(f"cron {self.expression!r} names no time within 50 years")

    def _check(self) -> None:
        from cronsim import CronSimError

        try:
            self.after(0)
        except CronSimError as error:
            raise ValueError(
                f"cron is {self.expression!r}: {error} (the fields are {FORM})"
            ) from None

    def __str__(self) -> str:
        return f"cron {self.expression} ({zone_name(self.zone)})"


def _simulated(plan: str, moment: int, zone: tzinfo | None) -> "CronSim":
    from cronsim import CronSim

    # what is UTC by another name goes the plain way, too
    return CronSim(plan, time_of(moment, *(() if zone is None else (zone,))))


def needs_cronsim() -> None:
    """Raises `ImportError` with what to install."""
    try:
        import cronsim  # noqa: F401
    except ImportError as error:
        raise ImportError("cron expressions need an extra: pip install 'dibs[tasks]'") from error


def zone_of(zone: str | tzinfo) -> tzinfo:
    """A time zone by its name. Raises `ValueError` for one that this system doesn't know."""
    if isinstance(zone, tzinfo):
        return zone
    if not isinstance(zone, str):
        raise TypeError(f'timezone is {zone!r}: give a name such as "Europe/Berlin", or a ZoneInfo')
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(
            f"timezone is {zone!r}, which this system doesn't know: names are such as "
            '"Europe/Berlin"; where none is known, pip install tzdata'
        ) from error


def zone_name(zone: tzinfo | None) -> str:
    """The name of a zone."""
    return "UTC" if zone is None else getattr(zone, "key", None) or str(zone)
