"""Stores of the model: the real ledger over books that are values."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from dibs.core import ledger
from dibs.core.book import Hold, MemoryBook, Place, Tomb
from dibs.core.timing import WINDOW
from dibs.model import Command, Inspect, Reply

KEY = b"lock:d/k"

_KINDS: dict[str, type] = {"Hold": Hold, "Place": Place, "Tomb": Tomb}


class Frozen(NamedTuple):
    """A book of the ledger's, as a value."""

    last: int = 0
    capacity: int = 0
    arrivals: int = 0
    entries: tuple[Any, ...] = ()


def frozen(book: MemoryBook) -> Frozen:
    found = list(book.entries())
    arrivals = sorted(entry.arrival for entry in found if isinstance(entry, Place))
    order = {arrival: number for number, arrival in enumerate(arrivals, 1)}
    entries = []
    for entry in found:
        fields = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
        fields["beat"] = 0
        if isinstance(entry, Place):  # of arrivals only the order matters
            fields["arrival"] = order[entry.arrival]
        entries.append((type(entry).__name__, tuple(fields.items())))
    return Frozen(book.last, book.capacity, len(arrivals), tuple(sorted(entries, key=str)))


def thawed(value: Frozen) -> MemoryBook:
    book = MemoryBook(value.last)
    book.capacity, book.arrivals = value.capacity, value.arrivals
    for kind, fields in value.entries:
        book.put(_KINDS[kind](**dict(fields)))
    return book


@cache
def applied(
    value: Frozen, commands: tuple[Command, ...], stamp: int
) -> tuple[Frozen, tuple[Reply, ...]]:
    book = thawed(value)
    replies = tuple(ledger.apply(book, command, 0.0, stamp)[0] for command in commands)
    return frozen(book), replies


@cache
def lapsed(value: Frozen, entry_id: str, stamp: int) -> Frozen:
    book = thawed(value)
    entry = book.get(entry_id)
    assert entry is not None
    book.remove(entry)
    ledger.apply(book, Inspect(KEY), 0.0, stamp)
    return frozen(book)


@cache
def silenced(value: Frozen, entry_id: str) -> Frozen:
    """Whoever has that place in line was not heard for long, and may be passed over."""
    book = thawed(value)
    place = book.get(entry_id)
    assert isinstance(place, Place)
    place.expires = place.ttl - 2 * WINDOW
    book.put(place)
    return frozen(book)


def ids_in(value: Frozen) -> Iterator[tuple[str, str]]:
    for kind, fields in value.entries:
        yield dict(fields)["id"], kind
