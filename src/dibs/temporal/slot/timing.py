"""Until when a permit in slot mode can be relied on, and when it began. Pure."""

from datetime import UTC, datetime, timedelta

from dibs.core.timing import margin

LONGEST_MARGIN = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def trusted(sent: float, ttl: float, until: float) -> float:
    """Its holder stops a little before the permit does, so that nobody else has it by then."""
    return min(sent + ttl, until) - spare(ttl)


def spare(ttl: float) -> float:
    """By how much its holder stops before it."""
    return min(margin(ttl), LONGEST_MARGIN)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
