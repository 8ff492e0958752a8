"""A broker's book as plain JSON, for its next run, and how large it may get. Pure."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry, Tombstone
from dibs.model import Acquire, Release

_KINDS: dict[str, type[Any]] = {"hold": Hold, "place": QueueEntry, "tomb": Tombstone}
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


ROOM = 1_000_000
"""So many bytes a book may have: with more no worker could ever go on with it."""

MESSAGE = 1_800_000
"""So many bytes a run may leave to the next one: a message of Temporal's has 2 MB at most."""

ENTRY = 700
"""An entry has not more than that besides its texts, in bytes."""


class Room:
    """A book's size in bytes, or more: it is counted exactly only where that matters."""

    def __init__(self, book: MemoryBook, packed: Mapping[str, Any] | None) -> None:
        self._book = book
        self.size = len(json.dumps(packed)) if packed else 0
        """Of the book, in bytes, or more."""
        self._counted = len(book.entries())
        """So many entries that's for."""
        self._exact = True

    def is_there_for(self, command: Acquire | Release) -> bool:
        """What is known already needs none, nor does a release that leaves nothing behind."""
        if self._book.get(command.id) is not None:
            return True
        if isinstance(command, Release):
            if command.tombstone:
                self._count(ENTRY)  # small, and soon over
            return True
        needed = ENTRY + len(json.dumps((command.owner, command.note, command.inbox)))
        if self.size + needed > ROOM:
            self._recount()
        if self.size + needed > ROOM:
            return False
        self._count(needed)
        return True

    def measured(self) -> int:
        """Its size, exactly."""
        self._recount()
        return self.size

    def _count(self, needed: int) -> None:
        self.size += needed
        self._counted += 1
        self._exact = False

    def _recount(self) -> None:
        """Much of it may have gone. That takes a while, so not again before something is different."""
        entries = len(self._book.entries())
        if not self._exact or entries < self._counted:
            self.size = len(json.dumps(dump(self._book)))
            self._counted, self._exact = entries, True
