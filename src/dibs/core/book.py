"""The book of one key: who holds it, who waits for it, which ids have ended.

`Book` is what the ledger needs of it; a store keeps the same in rows. `MemoryBook` keeps it in dicts
and heaps, and serves every store that loads a book as one value.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal, Protocol

from dibs.core.timing import POSITIONS

# An id has at most one entry: it holds, or it waits, or it has ended and is remembered.


@dataclass(slots=True)
class Hold:
    """Units that are taken, by the owner of `id` or, once `kept`, by nobody."""

    id: str
    owner: str
    token: int
    units: int
    slots: tuple[int, ...]
    ttl: float
    """From its last beat to its expiry."""
    expires: float
    """The store time at which it ends, where the store has a clock; ask the book's view instead."""
    beat: int = 0
    """Raised with every sign of life, for observers without the store's clock."""
    state: Literal["held", "unclaimed", "revoked", "kept"] = "held"
    seq: int = 0
    """The newest Resize heard of."""
    lock_delay: float = 0.0
    bury: float = 0.0
    """How long the id is remembered when a kept hold ends."""
    since: int = 0
    """The stamp of its grant."""
    note: str = ""
    detail: str = ""
    """Why it was revoked."""
    inbox: str = ""
    address: str = ""
    trace: str = ""


@dataclass(slots=True)
class Place:
    """A place in the queue: by priority, then by arrival."""

    id: str
    owner: str
    units: int
    priority: int
    arrival: int
    grant_ttl: float
    """The ttl that was asked for."""
    ttl: float
    """The patience: how long it lives without a sign of life."""
    expires: float
    beat: int = 0
    silence: float = inf
    """Seconds without a heartbeat after which it is passed over."""
    seen: int = 0
    """The newest token of the key at its last heartbeat."""
    floor: int = 0
    lock_delay: float = 0.0
    since: int = 0
    note: str = ""
    inbox: str = ""
    address: str = ""
    trace: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller comes first."""
        return (-self.priority, self.arrival)


@dataclass(slots=True)
class Tomb:
    """An id that has ended and must not be granted anything again while it is remembered."""

    id: str
    ttl: float
    expires: float
    beat: int = 0
    reason: Literal["buried", "unclaimed", "too_large", "revoked"] = "buried"
    detail: str = ""


type Entry = Hold | Place | Tomb


class Book(Protocol):
    """One key's state, as the ledger sees it.

    Entries are the book's own: after changing one, `put` it again. `units` and `slots` must only
    be changed between `remove` and `put`.
    """

    last: int
    """The newest token that was granted or reserved."""
    capacity: int
    """The newest capacity that a new id declared; 0 before the first."""
    arrivals: int
    """How many waiters and tombstones there ever were."""
    doubt: int
    """The newest token that nobody claimed: waiters not heard of since it was granted are passed over."""

    @property
    def used(self) -> int:
        """The units that are taken, kept ones included."""

    @property
    def taken(self) -> int:
        """The slots that holds have, as bits: bit 0 is slot 0."""

    @property
    def holding(self) -> int:
        """How many holds there are."""

    @property
    def waiting(self) -> int:
        """How many places there are."""

    @property
    def queue_limit(self) -> int | None:
        """How many places there may be."""

    def expires_at(self, entry: Entry) -> float:
        """When an entry ends, on the clock by which the ledger is told the time."""

    def ended(self, now: float, most: int) -> Collection[Entry]:
        """The first entries whose time is over, in the order of their ends and ids."""

    def get(self, entry_id: str) -> Entry | None:
        """Whatever an id has."""

    def holds(self) -> Iterable[Hold]:
        """All holds, in any order. Only a revocation reads them."""

    def first_to_end(self, count: int) -> Sequence[Hold]:
        """The holds that time ends first; those that end at the same time, in the order of their ids."""

    def first(self) -> Place | None:
        """The place that comes first in the queue."""

    def queue(self) -> Iterable[Place]:
        """The places, first come first; read no further than you must."""

    def ahead_of(self, place: Place) -> int:
        """How many places come before this one, counted up to `POSITIONS`."""

    def put(self, entry: Entry) -> None:
        """Write an entry, in the stead of whatever its id had."""

    def remove(self, entry: Entry) -> None:
        """Strike an entry out."""


def stored_expiry(entry: Entry) -> float:
    """The view of a store that has a clock."""
    return entry.expires


class MemoryBook:
    """A book in this process's memory.

    `view` tells when an entry ends: the stored time where the store has a clock, else whatever its
    observer goes by.
    """

    __slots__ = (
        "_alarms",
        "_entries",
        "_holds",
        "_queue",
        "_releases",
        "arrivals",
        "capacity",
        "doubt",
        "expires_at",
        "last",
        "queue_limit",
        "taken",
        "used",
    )

    def __init__(
        self,
        last: int = 0,
        queue_limit: int | None = None,
        view: Callable[[Entry], float] = stored_expiry,
    ) -> None:
        self.last = last
        self.capacity = 0
        self.arrivals = 0
        self.doubt = 0
        self.used = 0
        self.taken = 0
        self.queue_limit = queue_limit
        self.expires_at = view
        self._entries: dict[str, Entry] = {}
        self._holds: dict[str, Hold] = {}
        self._queue: list[tuple[int, int, str]] = []
        self._alarms: list[tuple[float, str]] = []
        self._releases: list[tuple[float, str]] = []

    @property
    def holding(self) -> int:
        return len(self._holds)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Nothing but the last token would be lost with this book."""
        return not self._entries

    def entries(self) -> Collection[Entry]:
        """Everything in it, in any order."""
        return self._entries.values()

    def get(self, entry_id: str) -> Entry | None:
        return self._entries.get(entry_id)

    def holds(self) -> Iterable[Hold]:
        return self._holds.values()

    def first_to_end(self, count: int) -> Sequence[Hold]:
        found: dict[str, tuple[float, str]] = {}
        while self._releases and len(found) < count:
            release = heappop(self._releases)
            hold = self._holds.get(release[1])
            if hold is not None and self.expires_at(hold) == release[0]:
                found[hold.id] = release
        for release in found.values():
            heappush(self._releases, release)
        return [self._holds[entry_id] for entry_id in found]

    def first(self) -> Place | None:
        return next(iter(self.queue()), None) if self._queue else None

    def queue(self) -> Iterable[Place]:
        for _, _, entry_id in self._queue:
            place = self._entries[entry_id]
            assert isinstance(place, Place)
            yield place

    def ahead_of(self, place: Place) -> int:
        return min(self._index(place), POSITIONS)

    def _index(self, place: Place) -> int:
        return bisect_left(self._queue, (*place.rank, ""))

    def put(self, entry: Entry) -> None:
        old = self._entries.get(entry.id)
        if old is not entry:
            if old is not None:
                self.remove(old)
            self._entries[entry.id] = entry
            if isinstance(entry, Hold):
                self._holds[entry.id] = entry
                self.used += entry.units
                self.taken |= bits_of(entry.slots)
            elif isinstance(entry, Place):
                insort(self._queue, (*entry.rank, entry.id))
        heappush(self._alarms, (self.expires_at(entry), entry.id))
        if isinstance(entry, Hold):
            heappush(self._releases, (self.expires_at(entry), entry.id))
        self._sweep_if_due()

    def remove(self, entry: Entry) -> None:
        del self._entries[entry.id]
        if isinstance(entry, Hold):
            del self._holds[entry.id]
            self.used -= entry.units
            self.taken &= ~bits_of(entry.slots)
        elif isinstance(entry, Place):
            del self._queue[self._index(entry)]
        self._sweep_if_due()

    def ended(self, now: float, most: int) -> Sequence[Entry]:
        alarms = self._alarms
        if not alarms or alarms[0][0] > now:
            return ()
        ended: dict[str, Entry] = {}
        while alarms and alarms[0][0] <= now and len(ended) < most:
            entry = self._entries.get(heappop(alarms)[1])
            if entry is not None and self.expires_at(entry) <= now:
                ended[entry.id] = entry
        return list(ended.values())

    def rebuild(self) -> None:
        """Make everything anew that follows from the entries, after an interrupt amid a change."""
        entries = self._entries.values()
        self._holds = {entry.id: entry for entry in entries if isinstance(entry, Hold)}
        self.used = sum(hold.units for hold in self._holds.values())
        self.taken = bits_of(slot for hold in self._holds.values() for slot in hold.slots)
        self._queue = sorted((*e.rank, e.id) for e in entries if isinstance(e, Place))
        self._sweep()

    def _sweep_if_due(self) -> None:
        """One pass over what there is pays for as many cheap changes."""
        entries, holds = len(self._entries), len(self._holds)
        if len(self._alarms) > 2 * entries + 4 or len(self._releases) > 2 * holds + 4:
            self._sweep()

    def _sweep(self) -> None:
        """Drop the alarms of what has gone or lives longer."""
        self._alarms = [(self.expires_at(entry), entry.id) for entry in self._entries.values()]
        self._releases = [(self.expires_at(hold), hold.id) for hold in self._holds.values()]
        heapify(self._alarms)
        heapify(self._releases)


def bits_of(slots: Iterable[int]) -> int:
    """A number with these bits set."""
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


def first_release(book: Book) -> float:
    """When time alone frees units for the first time; infinity where it never does."""
    return min((book.expires_at(hold) for hold in book.first_to_end(1)), default=inf)
