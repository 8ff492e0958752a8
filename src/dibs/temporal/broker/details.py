"""A broker's current details, as Temporal's UI shows them."""

from datetime import UTC, datetime
from itertools import islice

from dibs.core.book import Hold, MemoryBook, QueueEntry
from dibs.core.names import printable, shown
from dibs.model import MANY

_SHOWN = 10


def details(key: bytes, book: MemoryBook) -> str:
    """Some lines of Markdown: the first holders and waiters, without their lease ids."""
    lines = [f"**{shown(key)}**: {_taken(book)}, {book.waiting} waiting", ""]
    holds = sorted(book.first_to_end(_SHOWN), key=lambda hold: hold.token)
    lines += [_holder(hold) for hold in holds]
    lines += _more(book.holding, "hold")
    lines += [_waiter(place) for place in islice(book.queue(), _SHOWN)]
    lines += _more(book.waiting, "wait")
    return "\n".join(lines)


def _taken(book: MemoryBook) -> str:
    if book.capacity >= MANY:
        return f"{book.used} units taken"
    return f"{book.used} of {book.capacity} taken"


def _holder(hold: Hold) -> str:
    slots = f", slot {', '.join(map(str, hold.slots))}" if hold.slots else ""
    if hold.state == "retained":
        return f"- kept by {printable(hold.owner) or 'nobody'}{slots}"
    state = "" if hold.state == "held" else f" ({hold.state})"
    return (
        f"- held{state} by {printable(hold.owner)} since {_time(hold.since)}, "
        f"token {hold.token}{slots}{_note(hold.note)}"
    )


def _waiter(place: QueueEntry) -> str:
    units = "" if place.units == 1 else f" for {place.units} units"
    return f"- {printable(place.owner)} waits{units} since {_time(place.since)}{_note(place.note)}"


def _note(note: str) -> str:
    return f": {printable(note)}" if note else ""


def _time(stamp: int) -> str:
    try:
        return datetime.fromtimestamp(stamp / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):  # of a clock that is far off
        return "?"


def _more(many: int, what: str) -> list[str]:
    return [f"- {many - _SHOWN} more {what}"] if many > _SHOWN else []
