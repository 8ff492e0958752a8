"""How many places of a queue come before one, without going through the queue for each that asks."""

from bisect import bisect_left, insort

from dibs.core.timing import POSITIONS
from dibs.stores.sqlite.schema import Execute
from dibs.stores.sqlite.statements import ANY_BEHIND, COUNT_AHEAD, FIRST_RANKS

type Rank = tuple[int, int]


class Ranks:
    """The first ranks of one queue, for as long as only its book changes it.

    Who comes last has everybody before it, and most who ask have just come. Of the others the first is
    counted for, in the rows. Where a second one asks more will, as heartbeats travel together, so then the
    first `POSITIONS` ranks are read, once.
    """

    __slots__ = ("_asked", "_execute", "_is_cut", "_key", "_ranks")

    def __init__(self, execute: Execute, key: bytes) -> None:
        self._execute = execute
        self._key = key
        self._asked = False
        self._ranks: list[Rank] | None = None
        self._is_cut = False
        """There may be more behind those in `_ranks`."""

    def ahead_of(self, rank: Rank, others: int) -> int:
        """How many come before; `others`: how many there are besides. The rows are up to date."""
        if self._ranks is None:
            where = (self._key, *rank)
            if self._execute(ANY_BEHIND, where).fetchone() is None:
                return min(others, POSITIONS)
            if not self._asked:
                self._asked = True
                return int(self._execute(COUNT_AHEAD, where).fetchone()[0])
            self._ranks = self._execute(FIRST_RANKS, (self._key,)).fetchall()
            self._is_cut = len(self._ranks) == POSITIONS
        return min(bisect_left(self._ranks, rank), POSITIONS)

    def add(self, rank: Rank) -> None:
        """A place has come."""
        ranks = self._ranks
        if ranks is not None and not (self._is_cut and rank > ranks[-1]):
            insort(ranks, rank)

    def remove(self, rank: Rank) -> None:
        """A place has gone."""
        ranks = self._ranks
        if ranks is not None and not (self._is_cut and rank > ranks[-1]):
            del ranks[bisect_left(ranks, rank)]
            if self._is_cut and len(ranks) < POSITIONS:
                self._ranks = None  # to be read anew
