"""What people may see of a book's entries: ages and remaining times, never ids."""

from collections.abc import Iterable

from dibs.core.book import Hold, Place
from dibs.core.names import fingerprint
from dibs.core.turn import Turn
from dibs.model import Holder, Waiter


def holders_of(turn: Turn, holds: Iterable[Hold]) -> tuple[Holder, ...]:
    """Holds, as others may see them."""
    return tuple(
        Holder(
            lease="" if hold.state == "kept" else fingerprint(hold.id),
            owner=hold.owner,
            token=hold.token,
            units=hold.units,
            slots=hold.slots,
            held_for=_age(turn, hold.since),
            expires_in=turn.book.expires_at(hold) - turn.now,
            note=hold.note,
            state=hold.state,
            address=hold.address,
            trace=hold.trace,
        )
        for hold in holds
    )


def waiter_of(turn: Turn, place: Place) -> Waiter:
    """A place, as others may see it."""
    return Waiter(
        lease=fingerprint(place.id),
        owner=place.owner,
        units=place.units,
        priority=place.priority,
        waited=_age(turn, place.since),
        note=place.note,
        address=place.address,
        trace=place.trace,
    )


def _age(turn: Turn, since: int) -> float:
    return max(turn.stamp - since, 0) / 1e6
