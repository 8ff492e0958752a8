"""Entries of a book as rows, and back."""

from typing import Any

from dibs.core.book import Hold, Place, Tomb

type Row = tuple[Any, ...]

HOLD = (
    "id, owner, token, units, slots, ttl, expires, beat, state, seq, lock_delay, bury, since, note,"
    " detail, inbox, address, trace"
)
PLACE = (
    "id, owner, units, urgency, arrival, grant_ttl, ttl, expires, beat, silence, seen,"
    " floor, lock_delay, since, note, inbox, address, trace"
)
TOMB = "id, ttl, expires, beat, reason, detail"

NO_HOLD: Row = (None,) * 18

_SLOTS: dict[str, tuple[int, ...]] = {"": (), "0": (0,)}


def slots_text(slots: tuple[int, ...]) -> str:
    """`(0, 3)` as `0,3`."""
    return "0" if slots == (0,) else ",".join(map(str, slots))


def slots_of(text: str) -> tuple[int, ...]:
    """`0,3` as `(0, 3)`."""
    known = _SLOTS.get(text)
    return tuple(map(int, text.split(","))) if known is None else known


def hold_row(hold: Hold) -> Row:
    """A hold, in the order of `HOLD`."""
    return (
        hold.id,
        hold.owner,
        hold.token,
        hold.units,
        slots_text(hold.slots),
        hold.ttl,
        hold.expires,
        hold.beat,
        hold.state,
        hold.seq,
        hold.lock_delay,
        hold.bury,
        hold.since,
        hold.note,
        hold.detail,
        hold.inbox,
        hold.address,
        hold.trace,
    )


def hold_of(row: Row) -> Hold:
    """A row of `HOLD` as an entry."""
    return Hold(row[0], row[1], row[2], row[3], slots_of(row[4]), *row[5:])


def place_row(place: Place) -> Row:
    """A place, in the order of `PLACE`."""
    return (
        place.id,
        place.owner,
        place.units,
        -place.priority,
        place.arrival,
        place.grant_ttl,
        place.ttl,
        place.expires,
        place.beat,
        place.silence,
        place.seen,
        place.floor,
        place.lock_delay,
        place.since,
        place.note,
        place.inbox,
        place.address,
        place.trace,
    )


def place_of(row: Row) -> Place:
    """A row of `PLACE` as an entry."""
    place = Place(*row)
    place.priority = -place.priority  # the most urgent sorts first
    return place


def tomb_row(tomb: Tomb) -> Row:
    """A tomb, in the order of `TOMB`."""
    return (tomb.id, tomb.ttl, tomb.expires, tomb.beat, tomb.reason, tomb.detail)


def tomb_of(row: Row) -> Tomb:
    """A row of `TOMB` as an entry."""
    return Tomb(*row)
