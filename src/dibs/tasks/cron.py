"""Cron expressions, as Debian's cron reads them; the library is cronsim."""

from datetime import tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dibs.tasks.moments import moment_of, time_of

if TYPE_CHECKING:
    from cronsim import CronSim

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
        self.expression = expression
        self.zone = None if zone is None else zone_of(zone)
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
    """What to call a zone."""
    return "UTC" if zone is None else getattr(zone, "key", None) or str(zone)
