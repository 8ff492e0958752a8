"""Without dates, an entry ends once an observer has watched it do nothing for its ttl."""

import pytest

from dibs.core import ledger
from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry, Tombstone
from dibs.model import Acquire, Gone, Granted, Refused, Release, Renew, Reply, Resize
from dibs.stores.cas.clock import Sightings, StoreClock

KEY = b"lock:k"


class Observer:
    """A process with eyes of its own, over one record that all of them load and swap."""

    def __init__(self, record: "dict[str, list[Entry]]") -> None:
        self.record = record
        self.eyes = Sightings()
        self.clock = StoreClock()

    def tell(
        self, command: Acquire | Renew | Release | Resize, now: float, stamp: int = 0
    ) -> Reply:
        book = MemoryBook(self.record.get("last", 0), view=self.eyes.view(self.clock.time(now)))  # type: ignore[arg-type]
        book.capacity = 2
        book.arrivals = self.record.get("arrivals", 0)  # type: ignore[assignment]
        for entry in self.record["entries"]:
            book.put(entry)
        reply, _ = ledger.apply(book, command, now, stamp)
        self.record["entries"] = list(book.entries())
        self.record["last"] = book.last  # type: ignore[assignment]
        self.record["arrivals"] = book.arrivals  # type: ignore[assignment]
        self.eyes.forget_all_but(book.entries())
        return reply


@pytest.fixture
def record() -> dict[str, list[Entry]]:
    return {"entries": []}


def acquire(id_: str, ttl: float = 10) -> Acquire:
    return Acquire(KEY, id_, id_, ttl, capacity=2, units=2)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("comes_between", [True, False])
def test_a_tombstone_that_is_set_again_is_watched_afresh(
    record: dict[str, list[Entry]], comes_between: bool, copies: int
) -> None:
    """An observer may have seen the first one long ago."""
    owner, other = Observer(record), Observer(record)
    for _ in range(copies):
        owner.tell(Release(KEY, "a", tombstone=10), now=0)
    other.tell(acquire("b"), now=0)
    if comes_between:
        owner.tell(Release(KEY, "b"), now=50)
    owner.tell(Release(KEY, "a", tombstone=10), now=100)
    assert isinstance(other.tell(acquire("a"), now=101), Gone)


@pytest.mark.parametrize("units", [1, 2])
def test_a_resize_tells_no_more_than_every_observer_grants(
    record: dict[str, list[Entry]], units: int
) -> None:
    """The lease may have moved to a process that sees it for the first time."""
    first, other, heir = Observer(record), Observer(record), Observer(record)
    first.tell(acquire("a"), now=0)
    other.tell(acquire("b"), now=0)
    reply = heir.tell(Resize(KEY, "a", units, seq=1), now=9)
    assert isinstance(reply, Granted)
    assert isinstance(other.tell(acquire("b"), now=9 + reply.ttl - 0.01), Refused)


def test_repeated_renewals_do_not_compound_the_allowance(record: dict[str, list[Entry]]) -> None:
    holder = Observer(record)
    holder.tell(acquire("a"), now=0)
    for now in range(1, 50):
        holder.tell(Renew(KEY, "a", 10), now=now)
    (hold,) = record["entries"]
    assert hold.ttl == 10


def test_what_has_gone_is_forgotten() -> None:
    eyes, clock = Sightings(), StoreClock()
    view = eyes.view(clock.time(0))
    hold = Hold("a", "a", 1, 1, (0,), 10, 0)
    view(hold)
    view(Tombstone("b", 10, 0))
    view(QueueEntry("c", "c", 1, 0, 1, 10, 10, 0))
    eyes.forget_all_but([hold])
    assert list(eyes._seen) == ["a"]
    assert eyes.view(clock.time(5))(hold) == pytest.approx(10.1), "and what stays is not"
