"""How large a broker's book may get, which the next run takes over as plain JSON. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from dibs.core.book import MemoryBook
from dibs.model import Acquire, Release
from dibs.stores.snapshot import dump, load


def copy_of(book: MemoryBook) -> MemoryBook:
    """Another book that says the same: it may be asked without a change to this one."""
    return load(dump(book), book.queue_limit)


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
