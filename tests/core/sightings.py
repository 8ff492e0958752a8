"""Expiry where the store has no clock: by what this observer has seen, and for how long.

The rule is client-go's leader election's: a written time is never trusted. Each entry carries a
`beat` that its owner raises; an observer who has seen the same beat for the whole ttl, by its own
monotonic clock and a little more for the clocks' drift, knows that the entry has ended.

No store of ours is without a clock; that the ledger would bear one is held here and in `tests/model`.
"""

from collections.abc import Callable, Iterable

from dibs.core.book import Entry, Hold, QueueEntry
from dibs.core.timing import DRIFT

type Mark = tuple[type, int, int]
"""What tells one sign of life from all others of the same id."""


class Sightings:
    """The first time that this observer saw each entry's present beat."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Mark, float]] = {}

    def view(self, now: float) -> Callable[[Entry], float]:
        """How a book that was loaded at `now` tells when its entries end."""

        def expires_at(entry: Entry) -> float:
            seen, mark = self._seen.get(entry.id), _mark(entry)
            if seen is None or seen[0] != mark:
                seen = self._seen[entry.id] = (mark, now)
            return seen[1] + (1 + DRIFT) * entry.ttl

        return expires_at

    def forget_all_but(self, entries: Iterable[Entry]) -> None:
        """Keep no more than what is in the book."""
        living = {entry.id for entry in entries}
        for gone in self._seen.keys() - living:
            del self._seen[gone]


def _mark(entry: Entry) -> Mark:
    """The beat alone won't do: it begins anew where an id that had ended is acquired again."""
    life = 0
    if isinstance(entry, Hold):
        life = entry.token
    elif isinstance(entry, QueueEntry):
        life = entry.arrival
    return type(entry), life, entry.beat
