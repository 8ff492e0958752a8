"""Until when a permit in slot mode can be relied on. Pure."""

from leasehold.core.timing import margin

LONGEST_MARGIN = 5.0


def trusted(sent: float, ttl: float, until: float) -> float:
    """Its holder stops a little before the permit does, so that nobody else has it by then."""
    return min(sent + ttl, until) - spare(ttl)


def spare(ttl: float) -> float:
    """By how much its holder stops before it."""
    return min(margin(ttl), LONGEST_MARGIN)
