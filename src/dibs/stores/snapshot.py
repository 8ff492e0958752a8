"""The book of one key as plain JSON values, for stores that keep it as one value. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry, Tombstone, stored_expiry

type State = dict[str, Any]
"""A book as JSON values: numbers, texts, lists and dicts."""

_KINDS: dict[str, type[Any]] = {"hold": Hold, "waiter": QueueEntry, "tombstone": Tombstone}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple((each.name, each.default) for each in fields(kind)) for kind in _NAMES}
_VALUES = {kind: attrgetter(*(each.name for each in fields(kind))) for kind in _NAMES}
_KNOWN = {kind: frozenset(each.name for each in fields(kind)) for kind in _NAMES}


def dump(book: MemoryBook) -> State:
    """Everything that the book says; what follows from that is left out."""
    return {
        "last": book.last,
        "capacity": book.capacity,
        "arrivals": book.arrivals,
        "doubt": book.doubt,
        "entries": [_dump_entry(entry) for entry in book.entries()],
    }


def load(
    state: Mapping[str, Any],
    queue_limit: int | None = None,
    view: Callable[[Entry], float] = stored_expiry,
) -> MemoryBook:
    """Return the book that was dumped. Fields of a later release are left out.

    Raises `KeyError`, `TypeError` or `ValueError` if it is none.
    """
    book = MemoryBook(state["last"], queue_limit, view)
    book.capacity = state["capacity"]
    book.arrivals = state["arrivals"]
    book.doubt = state["doubt"]
    for each in state["entries"]:
        book.put(_load_entry(each))
    return book


def _dump_entry(entry: Entry) -> dict[str, Any]:
    """The fields that differ from their defaults, since a long queue has to fit into one value."""
    kind = type(entry)
    found: dict[str, Any] = {"is": _NAMES[kind]}
    for (name, default), value in zip(_FIELDS[kind], _VALUES[kind](entry), strict=True):
        if value != default:  # a field without a default always differs
            found[name] = list(value) if type(value) is tuple else value
    return found


def _load_entry(packed: Mapping[str, Any]) -> Entry:
    kind = _KINDS[packed["is"]]
    known = _KNOWN[kind]
    values = {
        name: tuple(value) if type(value) is list else value
        for name, value in packed.items()
        if name in known
    }
    found: Entry = kind(**values)
    return found
