"""The book of one key, kept in rows and read no further than the ledger looks.

The row of the key counts what there is and carries one hold inside; nothing else is read unless the
counts say that there is something to read. Changes are written by `flush`, each row once, however
often it was changed; those of other rows than the key's own also before these are looked through.
"""

import os
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from operator import attrgetter
from sqlite3 import Cursor

from dibs.core.book import Entry, Hold, Place, Tomb, bits_of, stored_expiry
from dibs.stores.sqlite.ranks import Ranks
from dibs.stores.sqlite.schema import Execute
from dibs.stores.sqlite.statements import (
    ALL_HOLDS,
    FIRST_HOLDS,
    FIRST_PLACES,
    NEXT_PLACES,
    READ_KEY,
    TABLES,
    Table,
)
from dibs.stores.sqlite.values import NO_HOLD, Row, hold_of, hold_row, place_of

FRONT_ROWS = 2
"""So many places are read at first: the head, and who is the head once that has gone."""
MORE_ROWS = 64

_rank = attrgetter("rank")
_end = attrgetter("expires", "id")


class RowBook:
    """A `Book` over rows; good for one transaction, or for more while nobody else has written."""

    __slots__ = (
        "_all_holds",
        "_front",
        "_front_is_all",
        "_inner",
        "_key",
        "_known",
        "_ranks",
        "_row",
        "_stored",
        "_tallies",
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

    queue_limit: int | None = None
    expires_at = staticmethod(stored_expiry)

    def __init__(self, execute: Execute, key: bytes, floor: int, row: Row | None = None) -> None:
        self.execute = execute
        """How it reads and writes rows; for one that is used outside of a transaction, `no_rows`."""
        self._key = key
        self._known: dict[str, Entry | None] = {}
        self._stored: dict[str, type | None] = {}
        """The ids whose rows are not as they should be, and in which table each has one."""
        self._all_holds: dict[str, Hold] | None = None
        self._front: list[Place] | None = None
        self._front_is_all = False
        self._ranks: Ranks | None = None
        self.simple = False
        """When it was last written everything of this key was in its own row."""
        self._row: Row = row or (
            *(key, _first_version(), floor, 0, 0, 0, 0, 0, 0, inf, 0, b""),
            *NO_HOLD,
        )
        _, self._version, self.last, self.capacity, self.arrivals, self.used = self._row[:6]
        places, holds, tombs, self.due, self.doubt, taken = self._row[6:12]
        self.taken = int.from_bytes(taken)
        self._tallies: dict[type, int] = {Place: places, Hold: holds, Tomb: tombs}
        self._inner: Hold | None = None if self._row[12] is None else hold_of(self._row[12:])

    @classmethod
    def read(cls, execute: Execute, key: bytes, floor: int) -> "RowBook":
        """The book of a key, as it is stored; `floor` is the last token of a key that is not there."""
        return cls(execute, key, floor, execute(READ_KEY, (key,)).fetchone())

    # -- what there is ------------------------------------------------------------------------------

    @property
    def holding(self) -> int:
        return self._tallies[Hold] + (self._inner is not None)

    @property
    def waiting(self) -> int:
        return self._tallies[Place]

    @property
    def idle(self) -> bool:
        """Nothing but the last token would be lost with this key."""
        return self._inner is None and not any(self._tallies.values())

    def get(self, entry_id: str) -> Entry | None:
        inner = self._inner
        if inner is not None and inner.id == entry_id:
            return inner
        if entry_id in self._known:
            return self._known[entry_id]
        entry = None
        for kind, tally in self._tallies.items():
            if tally:
                table = TABLES[kind]
                row = self.execute(table.get, (self._key, entry_id)).fetchone()
                if row is not None:
                    entry = table.of(row)
                    break
        self._known[entry_id] = entry
        return entry

    def _same(self, table: Table, rows: Iterable[Row]) -> Iterator[Entry]:
        """Rows as entries: the same object each time, or changes would be lost."""
        known = self._known
        for row in rows:
            entry = known.get(row[0])
            if entry is None:
                entry = known[row[0]] = table.of(row)
            yield entry

    def holds(self) -> Collection[Hold]:
        if self._tallies[Hold]:
            if self._all_holds is None:
                self._write()
                rows = self.execute(ALL_HOLDS, (self._key,)).fetchall()
                found = self._same(TABLES[Hold], rows)
                self._all_holds = {hold.id: hold for hold in found if isinstance(hold, Hold)}
            outer = self._all_holds.values()
            return list(outer) if self._inner is None else [self._inner, *outer]
        return () if self._inner is None else (self._inner,)

    def first_to_end(self, count: int) -> Sequence[Hold]:
        inner = self._inner
        if not self._tallies[Hold]:
            return () if inner is None else (inner,)
        self._write()
        rows = self.execute(FIRST_HOLDS, (self._key, count)).fetchall()
        holds = [hold for hold in self._same(TABLES[Hold], rows) if isinstance(hold, Hold)]
        if inner is not None:
            insort(holds, inner, key=_end)
        return holds[:count]

    # -- the queue ----------------------------------------------------------------------------------

    def first(self) -> Place | None:
        if not self._tallies[Place]:
            return None
        front = self._front or self._read_front()
        return front[0] if front else None

    def queue(self) -> Iterator[Place]:
        if not self._tallies[Place]:
            return
        chunk, is_last = list(self._front or self._read_front()), self._front_is_all
        while True:
            yield from chunk
            if is_last:
                return
            chunk = self._places(NEXT_PLACES, (self._key, *chunk[-1].rank, MORE_ROWS))
            is_last = len(chunk) < MORE_ROWS

    def _read_front(self) -> list[Place]:
        front = self._front = self._places(FIRST_PLACES, (self._key, FRONT_ROWS))
        self._front_is_all = len(front) < FRONT_ROWS
        return front

    def _into_front(self, place: Place) -> None:
        """Keep the front that we have read true to a new place."""
        front = self._front
        if front is None:
            return
        if self._front_is_all or place.rank < front[-1].rank:
            insort(front, place, key=_rank)

    def _out_of_front(self, place: Place) -> None:
        """Keep the front that we have read true to a place that goes."""
        front = self._front
        index = self._index_in_front(place)
        if front is not None and index is not None:
            del front[index]
            if not (front or self._front_is_all):
                self._front = None

    def _index_in_front(self, place: Place) -> int | None:
        for index, other in enumerate(self._front or ()):
            if other is place:
                return index
        return None

    def _places(self, statement: str, values: Row) -> list[Place]:
        self._write()
        known = self._known
        places: list[Place] = []
        for row in self.execute(statement, values).fetchall():
            place = known.get(row[0])
            if place is None:
                place = known[row[0]] = place_of(row)
            if isinstance(place, Place):
                places.append(place)
        return places

    def ahead_of(self, place: Place) -> int:
        index = self._index_in_front(place)
        if index is not None:
            return index
        places = self._tallies[Place]
        if not places:
            return 0
        self._write()
        if self._ranks is None:
            self._ranks = Ranks(self.execute, self._key)
        others = places - (self.get(place.id) is place)
        return self._ranks.ahead_of(place.rank, others)

    # -- what has ended -----------------------------------------------------------------------------

    def ended(self, now: float, most: int) -> Collection[Entry]:
        if now < self.due:
            return ()
        inner = self._inner
        found: list[Entry] = []
        self.due = inf
        if inner is not None:
            if inner.expires <= now:
                found.append(inner)
            else:
                self.due = inner.expires
        self._write()
        for kind, tally in self._tallies.items():
            if tally:
                found += self._ended_rows(TABLES[kind], now, most + 1)
        found.sort(key=_end)
        if len(found) > most:
            self.due = min(self.due, found[most].expires)
        return found[:most]

    def _ended_rows(self, table: Table, now: float, most: int) -> Iterable[Entry]:
        rows = self.execute(table.ended, (self._key, now, most)).fetchall()
        due = self.execute(table.next_due, (self._key, now)).fetchone()[0]
        if due is not None:
            self.due = min(self.due, due)
        return self._same(table, rows)

    # -- changes ------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        if entry.expires < self.due:
            self.due = entry.expires
        if entry is self._inner:
            return
        old = self.get(entry.id)
        if old is entry:
            self._stored.setdefault(entry.id, type(entry))
            return
        if old is not None:
            self.remove(old)
        if isinstance(entry, Hold):
            self.used += entry.units
            self.taken |= bits_of(entry.slots)
            if self._inner is None:
                self._inner = entry
                return
            if self._all_holds is not None:
                self._all_holds[entry.id] = entry
        elif isinstance(entry, Place):
            self._into_front(entry)
            if self._ranks is not None:
                self._ranks.add(entry.rank)
        self._tallies[type(entry)] += 1
        self._known[entry.id] = entry
        self._stored.setdefault(entry.id, None)

    def remove(self, entry: Entry) -> None:
        self._known[entry.id] = None
        if isinstance(entry, Hold):
            self.used -= entry.units
            self.taken &= ~bits_of(entry.slots)
            if entry is self._inner:
                self._inner = None
                return
            if self._all_holds is not None:
                del self._all_holds[entry.id]
        elif isinstance(entry, Place):
            self._out_of_front(entry)
            if self._ranks is not None:
                self._ranks.remove(entry.rank)
        self._tallies[type(entry)] -= 1
        self._stored.setdefault(entry.id, type(entry))

    def _write(self) -> None:
        """Bring all rows but the key's own up to date."""
        if not self._stored:
            return
        changed, self._stored = self._stored, {}
        for entry_id, kind in changed.items():
            if kind is not None and type(self._known[entry_id]) is not kind:
                self.execute(TABLES[kind].delete, (self._key, entry_id))
        for entry_id in changed:
            entry = self._known[entry_id]
            if entry is not None:
                table = TABLES[type(entry)]
                self.execute(table.write, (self._key, *table.row(entry)))

    def swap(self) -> Row | None:
        """What `SWAP_KEY` wants, if the key's own row has changed. Raises `OtherRows` if others have."""
        before = self._version
        row = self.flush()
        return None if row is None else (*row[1:], self._key, before)

    def flush(self) -> Row | None:
        """Write all that has changed but the key's own row; return that if it has changed."""
        self._write()
        inner, version = self._inner, self._version
        tallies = self._tallies
        places, holds, tombs = tallies[Place], tallies[Hold], tallies[Tomb]
        self.simple = not (places or holds or tombs)
        if self.simple:
            self.due = inf if inner is None else inner.expires
            self._known.clear()
            self._ranks = None
        row = (
            self._key,
            version,
            self.last,
            self.capacity,
            self.arrivals,
            self.used,
            places,
            holds,
            tombs,
            self.due,
            self.doubt,
            self.taken.to_bytes((self.taken.bit_length() + 7) // 8),
            *(_no_hold(self._row) if inner is None else hold_row(inner)),
        )
        if row == self._row:
            return None
        self._version = version + 1
        self._row = row = (self._key, version + 1, *row[2:])
        return row


class OtherRows(Exception):
    """More than the key's own row is needed, and so a transaction."""


def no_rows(*_: object) -> Cursor:
    """For a book that is to do without."""
    raise OtherRows


def _no_hold(row: Row) -> Row:
    """What was in a row, less the id of the hold: one of the same size is written with less work."""
    return (None, *row[13:])


def _first_version() -> int:
    """No row of this key that was thrown out had any version that this one will have."""
    return int.from_bytes(os.urandom(6))
