"""Names, durations and holders for people."""

from collections.abc import Sequence

from dibs.model import MANY, Holder, Status

_FEW = 3
"""Holders that are named; of the rest only the count."""


def printable(text: str) -> str:
    """Escape control characters: names and notes come from other users."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(key: bytes) -> str:
    """A key's name."""
    return printable(key.partition(b":")[2].decode("utf-8", "backslashreplace"))


def kind_of(key: bytes) -> str:
    """A key's kind."""
    return printable(key.partition(b":")[0].decode("ascii", "replace"))


def span(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def counted(count: int, thing: str) -> str:
    """A count and its noun."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def holding(holder: Holder) -> str:
    """Who holds, what for, since when."""
    if holder.state == "retained":
        return f"retained after its last hold, free in {span(holder.expires_in)}"
    note = f" ({printable(holder.note)})" if holder.note else ""
    revoked = ", revoked" if holder.state == "revoked" else ""
    age = (
        f" for {span(holder.held_for)}" if holder.held_for else ""
    )  # another elector need not tell
    return f"held by {printable(holder.owner)}{note}{age}{revoked}"


def holders(status: Status) -> str:
    """All of a key's holders in one phrase."""
    return held_by(status.holders, status.holding)


def state(status: Status) -> str:
    """Units taken, if there are several, and the holders."""
    return taken(status) + holders(status)


def taken(status: Status) -> str:
    """Units taken, as a beginning; empty if there is one unit, or no bound."""
    if not status.holders or not 1 < status.capacity < MANY:
        return ""
    return f"{status.used} of {status.capacity}: "


def last_end(status: Status) -> str:
    """When the last lease ends; more than that if not all holders are listed; empty if it is free."""
    ends = [each.expires_in for each in status.holders]
    more = "> " if status.holding > len(ends) else ""
    return f"{more}{span(max(ends))}" if ends else ""


def held_by(holders: Sequence[Holder], count: int = 0) -> str:
    """Holders in one phrase; `count` is how many there are, if not all are listed."""
    if not holders:
        return "free"
    named = "; ".join(holding(holder) for holder in holders[:_FEW])
    more = max(count, len(holders)) - len(holders[:_FEW])
    return f"{named}; and {more:,} more" if more > 0 else named
