"""What the command line says of a key: its holders and waiters, in a phrase or as JSON."""

from collections.abc import Sequence

from dibs.cli.output import HOLDER_FIELDS, Shape, fields_of, name_shape, printable, span
from dibs.model import MANY, Holder, Status

_FEW = 3
"""Holders that are named; of the rest only the count."""


def holding(holder: Holder) -> str:
    """A holder in one phrase: the owner, the note, the time held."""
    if holder.state == "retained":
        return "retained after its last hold"
    note = f" ({printable(holder.note)})" if holder.note else ""
    revoked = ", revoked" if holder.state == "revoked" else ""
    age = f" for {span(holder.held_for)}" if holder.held_for else ""  # unknown of another elector
    return f"held by {printable(holder.owner)}{note}{age}{revoked}"


def holders(status: Status) -> str:
    """All of a key's holders in one phrase."""
    return held_by(status.holders, status.holding)


def state(status: Status) -> str:
    """Units taken, if there is a bound above one, and the holders; without times of expiry."""
    is_counted = status.holders and 1 < status.capacity < MANY
    named = held_by(status.holders, status.holding, ends=False)
    return f"{status.used} of {status.capacity}: {named}" if is_counted else named


def last_end(status: Status) -> str:
    """Time until the last lease ends, after `>` if not all holders are listed; empty if it is free."""
    ends = [each.expires_in for each in status.holders]
    more = "> " if status.holding > len(ends) else ""
    return f"{more}{span(max(ends))}" if ends else ""


def held_by(holders: Sequence[Holder], count: int = 0, *, ends: bool = True) -> str:
    """Holders in one phrase; `count` is how many there are, if not all are listed.

    With `ends` it includes when retained units become free.
    """
    if not holders:
        return "free"
    named = "; ".join(
        f"{holding(each)}, free in {span(each.expires_in)}"
        if ends and each.state == "retained"
        else holding(each)
        for each in holders[:_FEW]
    )
    more = max(count, len(holders)) - len(holders[:_FEW])
    return f"{named}; and {more:,} more" if more > 0 else named


def status_shape(status: Status, *, decode: bool = True) -> Shape:
    """Holders and waiters of a key."""
    return name_shape(status.key, decode=decode) | {
        "held": bool(status.holders),
        "capacity": None if status.capacity >= MANY else status.capacity,
        "holding": max(status.holding, len(status.holders)),
        "used": status.used,
        "holders": [fields_of(holder, HOLDER_FIELDS) for holder in status.holders],
        "waiting": max(status.waiting, len(status.waiters)),
        "waiters": [
            fields_of(waiter, "owner lease units priority waited note") for waiter in status.waiters
        ],
        "last_token": status.last_token,
    }
