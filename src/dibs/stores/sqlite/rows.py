"""The book of one key, kept in rows. It reads no further than the ledger looks.

The key's own row counts the entries and contains one hold. Other rows are read only if the counts say
that there are any. `flush` writes each changed row once, however often it changed. Changed rows are
also written before a query looks through them.
"""

import os
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from math import inf
from operator import attrgetter
from sqlite3 import Cursor

from dibs.core.book import Entry, Hold, QueueEntry, Tombstone, bits_of, stored_expiry
from dibs.core.timing import COUNTED_POSITIONS
from dibs.stores.sqlite.schema import (
    ALL_HOLDS,
    ANY_BEHIND,
    DELETE_ENTRY,
    EXPIRED,
    FIELDS,
    FIRST_HOLDS,
    FIRST_RANKS,
    FIRST_WAITERS,
    NEXT_EXPIRY,
    NEXT_WAITERS,
    READ_ENTRY,
    WRITE_ENTRY,
    Execute,
    Kind,
    Row,
)

FRONT_ROWS = 2
"""Waiters read at first: the head of the queue, and the next head."""

MORE_ROWS = 64
"""Waiters read at a time behind those."""

_VALUES = {kind: attrgetter(*names) for kind, names in FIELDS.items()}
_SLOTS = FIELDS[Hold].index("slots")
_NO_HOLD = (None,) * len(FIELDS[Hold])

_rank = attrgetter("rank")
_end = attrgetter("expires", "id")


class OtherRows(Exception):
    """More than the key's own row is needed, which takes a transaction."""


def no_rows(*_: object) -> Cursor:
    """`Execute` for a book that may only use the key's own row."""
    raise OtherRows


class RowBook:
    """A `Book` over rows, valid for one transaction, or for more if nobody else has written.

    `row` is the key's own; None if it has none. `floor` is the last token then.
    """

    __slots__ = (
        "_changed",
        "_counts",
        "_front",
        "_front_is_all",
        "_inner",
        "_key",
        "_known",
        "_ranks",
        "_row",
        "_version",
        "arrivals",
        "capacity",
        "doubt",
        "due",
        "execute",
        "last",
        "simple",
        "taken",
        "used",
    )

    last: int
    capacity: int
    arrivals: int
    used: int
    due: float
    doubt: int
    queue_limit: int | None = None
    expires_at = staticmethod(stored_expiry)

    def __init__(self, execute: Execute, key: bytes, floor: int, row: Row | None) -> None:
        self.execute: Execute = execute
        """Reads and writes rows; `no_rows` outside of a transaction."""
        self._key = key
        self._known: dict[str, Entry | None] = {}
        """Entries of other rows that were read or changed; None: the id has no row."""
        self._changed: dict[str, None] = {}
        """The ids whose rows are to be written, in the order of the changes."""
        self._front: list[QueueEntry] | None = None
        """The first waiters, as far as they were read."""
        self._front_is_all = False
        self._ranks: list[tuple[int, int]] | None = None
        """The ranks of the first waiters, up to `COUNTED_POSITIONS` of them or a few more."""
        self.simple: bool = False
        """When it was last written, everything of this key was in its own row."""
        self._row: Row = row or (
            *(key, _first_version(), floor, 0, 0, 0, 0, 0, 0, inf, 0, b""),
            *_NO_HOLD,
        )
        _, self._version, self.last, self.capacity, self.arrivals, self.used = self._row[:6]
        waiting, holds, tombs, self.due, self.doubt, taken = self._row[6:12]
        self.taken: int = int.from_bytes(taken)
        self._counts: dict[Kind, int] = {QueueEntry: waiting, Hold: holds, Tombstone: tombs}
        self._inner = None if self._row[12] is None else _entry_of(Hold, self._row[12:])

    # -- entries ------------------------------------------------------------------------------------

    @property
    def holding(self) -> int:
        return self._counts[Hold] + (self._inner is not None)

    @property
    def waiting(self) -> int:
        return self._counts[QueueEntry]

    @property
    def idle(self) -> bool:
        """Nothing but the last token would be lost with this key."""
        return self._inner is None and not any(self._counts.values())

    def get(self, entry_id: str) -> Entry | None:
        inner = self._inner
        if inner is not None and inner.id == entry_id:
            return inner
        if entry_id in self._known:
            return self._known[entry_id]
        entry = None
        for kind, count in self._counts.items():
            if count:
                row = self.execute(READ_ENTRY[kind], (self._key, entry_id)).fetchone()
                if row is not None:
                    entry = _entry_of(kind, row)
                    break
        self._known[entry_id] = entry
        return entry

    def _find[E: Entry](self, kind: type[E], statement: str, *values: object) -> list[E]:
        """The entries that a statement finds. Each has one object, or changes would be lost."""
        self._write()
        known = self._known
        found: list[E] = []
        for row in self.execute(statement, (self._key, *values)).fetchall():
            entry = known.get(row[0])
            if entry is None:
                entry = known[row[0]] = _entry_of(kind, row)
            assert isinstance(entry, kind)
            found.append(entry)
        return found

    def holds(self) -> Collection[Hold]:
        others = self._find(Hold, ALL_HOLDS) if self._counts[Hold] else []
        return others if self._inner is None else [self._inner, *others]

    def first_to_end(self, count: int) -> Sequence[Hold]:
        holds = self._find(Hold, FIRST_HOLDS, count) if self._counts[Hold] else []
        if self._inner is not None:
            insort(holds, self._inner, key=_end)
        return holds[:count]

    def ended(self, now: float, most: int) -> Collection[Entry]:
        if now < self.due:
            return ()
        inner, self.due = self._inner, inf
        found: list[Entry] = []
        if inner is not None:
            if inner.expires <= now:
                found.append(inner)
            else:
                self.due = inner.expires
        for kind, count in self._counts.items():
            if count:
                found += self._find(kind, EXPIRED[kind], now, most + 1)
                due = self.execute(NEXT_EXPIRY[kind], (self._key, now)).fetchone()[0]
                self.due = min(self.due, inf if due is None else due)
        found.sort(key=_end)
        if len(found) > most:
            self.due = min(self.due, found[most].expires)
        return found[:most]

    # -- the queue ----------------------------------------------------------------------------------

    def first(self) -> QueueEntry | None:
        if not self._counts[QueueEntry]:
            return None
        return self._front[0] if self._front else next(self.queue())

    def queue(self) -> Iterator[QueueEntry]:
        if not self._counts[QueueEntry]:
            return
        if not self._front:
            self._front = self._find(QueueEntry, FIRST_WAITERS, FRONT_ROWS)
            self._front_is_all = len(self._front) < FRONT_ROWS
        chunk, is_last = list(self._front), self._front_is_all
        while True:
            yield from chunk
            if is_last:
                return
            chunk = self._find(QueueEntry, NEXT_WAITERS, *chunk[-1].rank, MORE_ROWS)
            is_last = len(chunk) < MORE_ROWS

    def ahead_of(self, place: QueueEntry) -> int:
        rank, front = place.rank, self._front
        if not self._counts[QueueEntry]:
            return 0
        if front and (self._front_is_all or rank <= front[-1].rank):
            return bisect_left(front, rank, key=_rank)
        if self._ranks is None:
            self._write()
            if self.execute(ANY_BEHIND, (self._key, *rank)).fetchone() is None:
                others = self._counts[QueueEntry] - (self.get(place.id) is place)
                return min(others, COUNTED_POSITIONS)
            self._ranks = self.execute(FIRST_RANKS, (self._key,)).fetchall()
        return min(bisect_left(self._ranks, rank), COUNTED_POSITIONS)

    def _enqueue(self, place: QueueEntry) -> None:
        """Keep `_front` and `_ranks` true: both begin with the head of the queue and have no gap."""
        front, ranks = self._front, self._ranks
        if front is not None and (self._front_is_all or (front and place.rank < front[-1].rank)):
            insort(front, place, key=_rank)
        if ranks is not None and (len(ranks) < COUNTED_POSITIONS or place.rank < ranks[-1]):
            insort(ranks, place.rank)

    def _dequeue(self, place: QueueEntry) -> None:
        front, ranks = self._front, self._ranks
        if front and place.rank <= front[-1].rank:
            del front[bisect_left(front, place.rank, key=_rank)]
        if ranks and place.rank <= ranks[-1]:
            del ranks[bisect_left(ranks, place.rank)]
            if len(ranks) == COUNTED_POSITIONS - 1:
                self._ranks = None  # there may be more behind them

    # -- changes ------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        if entry.expires < self.due:
            self.due = entry.expires
        if entry is self._inner:
            return
        old = self.get(entry.id)
        if old is not entry:
            if old is not None:
                self.remove(old)
            if isinstance(entry, Hold):
                self.used += entry.units
                self.taken |= bits_of(entry.slots)
                if self._inner is None:
                    self._inner = entry
                    return
            elif isinstance(entry, QueueEntry):
                self._enqueue(entry)
            self._counts[type(entry)] += 1
            self._known[entry.id] = entry
        self._changed[entry.id] = None

    def remove(self, entry: Entry) -> None:
        if isinstance(entry, Hold):
            self.used -= entry.units
            self.taken &= ~bits_of(entry.slots)
        elif isinstance(entry, QueueEntry):
            self._dequeue(entry)
        if entry is self._inner:
            self._inner = None
            return
        self._counts[type(entry)] -= 1
        self._known[entry.id] = None
        self._changed[entry.id] = None

    def _write(self) -> None:
        """Write all changed rows but the key's own."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        for entry_id in changed:
            entry = self._known[entry_id]
            if entry is None:
                self.execute(DELETE_ENTRY, (self._key, entry_id))
            else:
                self.execute(WRITE_ENTRY[type(entry)], (self._key, *_values_of(entry)))

    def swap(self) -> Row | None:
        """The values for `SWAP_KEY` if the key's own row has changed. Raises `OtherRows` if others have."""
        before = self._version
        row = self.flush()
        return None if row is None else (*row[1:], self._key, before)

    def flush(self) -> Row | None:
        """Write all changed rows but the key's own; return that one if it has changed."""
        self._write()
        inner, version = self._inner, self._version
        waiting, holds, tombs = self._counts.values()
        self.simple = not (waiting or holds or tombs)
        if self.simple:
            self.due = inf if inner is None else inner.expires
            self._known.clear()
            self._front = self._ranks = None
        row = (
            self._key,
            version,
            self.last,
            self.capacity,
            self.arrivals,
            self.used,
            waiting,
            holds,
            tombs,
            self.due,
            self.doubt,
            self.taken.to_bytes((self.taken.bit_length() + 7) // 8),
        )
        if inner is None:  # what is left of the last hold costs less to leave than to erase
            row = (*row, None, *self._row[13:])
        else:
            row = (*row, *_values_of(inner))
        if row == self._row:
            return None
        self._version = version + 1
        self._row = (self._key, version + 1, *row[2:])
        return self._row


def _first_version() -> int:
    """Random, so that no deleted row of this key had any version that the new row will have."""
    return int.from_bytes(os.urandom(6))


def _values_of(entry: Entry) -> Row:
    """The values of an entry's columns."""
    values: Row = _VALUES[type(entry)](entry)
    if isinstance(entry, Hold):
        slots = "0" if entry.slots == (0,) else ",".join(map(str, entry.slots))
        return (*values[:_SLOTS], slots, *values[_SLOTS + 1 :])
    return values


def _entry_of[E: Entry](kind: type[E], values: Row) -> E:
    """The entry with these values."""
    entry = kind(*values)
    if isinstance(entry, Hold):
        slots = values[_SLOTS]
        entry.slots = tuple(map(int, slots.split(","))) if slots else ()
    return entry
