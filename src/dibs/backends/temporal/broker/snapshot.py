"""A broker's book as plain JSON, for its next run. Pure, as the sandbox wants it."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from dibs.core.book import Entry, Hold, MemoryBook, Place, Tomb

_KINDS: dict[str, type[Any]] = {"hold": Hold, "place": Place, "tomb": Tomb}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_DEFAULTS = {
    kind: {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    for kind in _NAMES
}


def dump(book: MemoryBook) -> dict[str, Any]:
    """Everything that the book says; what follows from that is left out."""
    return {
        "last": book.last,
        "capacity": book.capacity,
        "arrivals": book.arrivals,
        "doubt": book.doubt,
        "entries": [_dump_entry(entry) for entry in book.entries()],
    }


def load(state: Mapping[str, Any], queue_limit: int | None = None) -> MemoryBook:
    """The way back; fields of a later release are left out."""
    book = MemoryBook(state["last"], queue_limit)
    book.capacity = state["capacity"]
    book.arrivals = state["arrivals"]
    book.doubt = state["doubt"]
    for each in state["entries"]:
        book.put(_load_entry(each))
    return book


def copy_of(book: MemoryBook) -> MemoryBook:
    """Another book that says the same: it may be asked without a change to this one."""
    return load(dump(book), book.queue_limit)


def _dump_entry(entry: Entry) -> dict[str, Any]:
    """What differs from the defaults, since a long queue has to fit into one message."""
    kind = type(entry)
    found: dict[str, Any] = {"is": _NAMES[kind]}
    for each in fields(entry):
        value = getattr(entry, each.name)
        if each.name not in _DEFAULTS[kind] or value != _DEFAULTS[kind][each.name]:
            found[each.name] = list(value) if isinstance(value, tuple) else value
    return found


def _load_entry(packed: Mapping[str, Any]) -> Entry:
    kind = _KINDS[packed["is"]]
    known = {each.name for each in fields(kind)}
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in packed.items()
        if name in known
    }
    found: Entry = kind(**values)
    return found
