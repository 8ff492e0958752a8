"""The book of one key: its holds, its waiters and its tombstones.

`Book` is the interface that the ledger uses. `MemoryBook` keeps the entries in dicts and heaps, for every
store that loads a book as one value. A store with rows implements `Book` over its rows.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal, Protocol

from dibs.core.timing import COUNTED_POSITIONS

# An id has at most one entry: a hold, a waiter or a tombstone.


@dataclass(slots=True)
class Hold:
    """Units that are taken: by the owner of `id` or, if `retained`, by nobody."""

    id: str
    owner: str
    token: int
    units: int
    slots: tuple[int, ...]
    ttl: float
    """Seconds from its last beat to its expiry."""
    expires: float
    """Store time of its expiry, if the store has a clock. Use `Book.expires_at` instead."""
    beat: int = 0
    """Rises with every renewal or heartbeat, for observers without a store clock."""
    state: Literal["held", "unclaimed", "revoked", "retained"] = "held"
    seq: int = 0
    """Number of the newest Resize."""
    lock_delay: float = 0.0
    tombstone: float = 0.0
    """Seconds for which the id is remembered after a retained hold has ended."""
    since: int = 0
    """Stamp of its grant."""
    note: str = ""
    detail: str = ""
    """Why it was revoked."""
    inbox: str = ""
    address: str = ""
    trace: str = ""


@dataclass(slots=True)
class QueueEntry:
    """A waiter. The queue is in the order of priority, then of arrival."""

    id: str
    owner: str
    units: int
    priority: int
    arrival: int
    grant_ttl: float
    """The ttl of the lease that it asks for."""
    ttl: float
    """Waiter ttl: seconds without a heartbeat until it leaves the queue."""
    expires: float
    beat: int = 0
    silence: float = inf
    """Seconds without a heartbeat after which it is passed over."""
    seen: int = 0
    """The newest token of the key when it sent its last heartbeat."""
    floor: int = 0
    lock_delay: float = 0.0
    since: int = 0
    note: str = ""
    inbox: str = ""
    address: str = ""
    trace: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Position in the queue: the smaller one comes first."""
        return (-self.priority, self.arrival)


@dataclass(slots=True)
class Tombstone:
    """A remembered id that has ended. It is never granted anything again."""

    id: str
    ttl: float
    expires: float
    beat: int = 0
    reason: Literal["released", "unclaimed", "too_large", "revoked"] = "released"
    detail: str = ""


type Entry = Hold | QueueEntry | Tombstone


class Book(Protocol):
    """The state of one key.

    Entries belong to the book: `put` an entry again after you change it. Change `units` and `slots` only
    between `remove` and `put`.
    """

    last: int
    """The newest fencing token."""
    capacity: int
    """The newest capacity that a new id declared. 0 before the first one."""
    arrivals: int
    """How many waiters and tombstones this key ever had."""
    doubt: int
    """The newest token that nobody claimed. Waiters without a heartbeat since then are passed over."""

    @property
    def used(self) -> int:
        """How many units are taken, including retained ones."""

    @property
    def taken(self) -> int:
        """Bitmap of the slots in use: bit 0 is slot 0."""

    @property
    def holding(self) -> int:
        """How many holds there are."""

    @property
    def waiting(self) -> int:
        """How many waiters there are."""

    @property
    def queue_limit(self) -> int | None:
        """How many waiters there can be. None: no limit."""

    def expires_at(self, entry: Entry) -> float:
        """Return when an entry expires, on the clock of `now` in `ledger.apply`."""

    def ended(self, now: float, most: int) -> Collection[Entry]:
        """At most `most` expired entries, in the order of expiry, then of id."""

    def get(self, entry_id: str) -> Entry | None:
        """The entry of an id."""

    def holds(self) -> Iterable[Hold]:
        """All holds, in any order. Only Revoke reads them all."""

    def first_to_end(self, count: int) -> Sequence[Hold]:
        """The holds that expire first, then by id. At most `count`."""

    def first(self) -> QueueEntry | None:
        """The head of the queue."""

    def queue(self) -> Iterable[QueueEntry]:
        """The waiters in order. Lazy: read no further than you must."""

    def ahead_of(self, waiter: QueueEntry) -> int:
        """How many waiters are ahead of this one, up to `COUNTED_POSITIONS`."""

    def put(self, entry: Entry) -> None:
        """Write an entry. It replaces the entry that its id had."""

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""


def stored_expiry(entry: Entry) -> float:
    """Expiry in a store that has a clock."""
    return entry.expires


class MemoryBook:
    """A book in memory.

    `view` returns when an entry expires: the stored time if the store has a clock, else the observer's.
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
        self.last: int = last
        self.capacity: int = 0
        self.arrivals: int = 0
        self.doubt: int = 0
        self.used: int = 0
        self.taken: int = 0
        self.queue_limit: int | None = queue_limit
        self.expires_at: Callable[[Entry], float] = view
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
        """True if the book holds nothing but the last token."""
        return not self._entries

    def entries(self) -> Collection[Entry]:
        """All entries, in any order."""
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

    def first(self) -> QueueEntry | None:
        return next(iter(self.queue()), None) if self._queue else None

    def queue(self) -> Iterable[QueueEntry]:
        for _, _, entry_id in self._queue:
            waiter = self._entries[entry_id]
            assert isinstance(waiter, QueueEntry)
            yield waiter

    def ahead_of(self, waiter: QueueEntry) -> int:
        return min(self._index(waiter), COUNTED_POSITIONS)

    def _index(self, waiter: QueueEntry) -> int:
        return bisect_left(self._queue, (*waiter.rank, ""))

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
            elif isinstance(entry, QueueEntry):
                insort(self._queue, (*entry.rank, entry.id))
        alarm = self.expires_at(entry), entry.id
        heappush(self._alarms, alarm)
        if isinstance(entry, Hold):
            heappush(self._releases, alarm)
        self._sweep_if_due()

    def remove(self, entry: Entry) -> None:
        del self._entries[entry.id]
        if isinstance(entry, Hold):
            del self._holds[entry.id]
            self.used -= entry.units
            self.taken &= ~bits_of(entry.slots)
        elif isinstance(entry, QueueEntry):
            del self._queue[self._index(entry)]
        self._sweep_if_due()

    def ended(self, now: float, most: int) -> Sequence[Entry]:
        alarms = self._alarms
        if not alarms or alarms[0][0] > now:
            return ()
        ended: dict[str, Entry] = {}
        while alarms and alarms[0][0] <= now and len(ended) < most:
            alarm, entry_id = heappop(alarms)
            entry = self._entries.get(entry_id)
            if entry is None or (expires := self.expires_at(entry)) > now:
                continue
            if expires > alarm:  # it was extended after this alarm was set
                heappush(alarms, (expires, entry_id))
            else:
                ended[entry_id] = entry
        return list(ended.values())

    def rebuild(self) -> None:
        """Rebuild all indexes from the entries, after an interrupt during a change."""
        entries = self._entries.values()
        self._holds = {entry.id: entry for entry in entries if isinstance(entry, Hold)}
        self.used = sum(hold.units for hold in self._holds.values())
        self.taken = bits_of(slot for hold in self._holds.values() for slot in hold.slots)
        self._queue = sorted((*e.rank, e.id) for e in entries if isinstance(e, QueueEntry))
        self._alarms, self._releases = self._heap_of(self._entries), self._heap_of(self._holds)

    def _sweep_if_due(self) -> None:
        """Sweep a heap once half of it is stale, so that each change stays cheap.

        A key with one holder may have thousands of tombstones: each heap is swept by its own size.
        """
        if len(self._alarms) > 2 * len(self._entries) + 4:
            self._alarms = self._heap_of(self._entries)
        if len(self._releases) > 2 * len(self._holds) + 4:
            self._releases = self._heap_of(self._holds)

    def _heap_of(self, entries: Mapping[str, Entry]) -> list[tuple[float, str]]:
        """When each entry expires, without those that are gone or were extended."""
        heap = [(self.expires_at(entry), entry.id) for entry in entries.values()]
        heapify(heap)
        return heap


def bits_of(slots: Iterable[int]) -> int:
    """Bitmap of these slots."""
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


def first_release(book: Book) -> float:
    """Return when time first frees units; infinity if nothing is held."""
    return min((book.expires_at(hold) for hold in book.first_to_end(1)), default=inf)
