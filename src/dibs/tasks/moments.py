"""Moments of wall-clock time, in whole microseconds since 1970: the same number in every process."""

from datetime import UTC, datetime, timedelta, tzinfo

SECOND = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(when: datetime) -> int:
    """The moment of a time that knows its zone."""
    # in UTC first: differences within one zone ignore that its offset changes
    return (when.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def time_of(moment: int, zone: tzinfo = UTC) -> datetime:
    """A moment as a time in a zone."""
    return (_EPOCH + timedelta(microseconds=moment)).astimezone(zone)


def written(moment: int) -> str:
    """A moment as a part of a name: `2026-11-22T02:00:00Z`."""
    return time_of(moment).isoformat().replace("+00:00", "Z")
