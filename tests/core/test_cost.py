"""A command touches a few holders, its own place and the head, never all holders or the whole queue."""

from collections.abc import Iterable, Sequence

import pytest

from dibs.core import ledger
from dibs.core.book import Hold, MemoryBook, Place
from dibs.core.timing import FRONT, SIGHT
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
)

KEY = b"lock:k"
QUEUE, HOLDERS = 10_000, 9_000


class CountingBook(MemoryBook):
    """Counts the places that the ledger gets to see, however it asks for them."""

    __slots__ = ("touched",)

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    def get(self, entry_id: str) -> Hold | Place | None:
        self.touched += 1
        return super().get(entry_id)  # type: ignore[return-value]

    def holds(self) -> Iterable[Hold]:
        for hold in super().holds():
            self.touched += 1
            yield hold

    def first_to_end(self, count: int) -> Sequence[Hold]:
        found = super().first_to_end(count)
        self.touched += len(found)
        return found

    def queue(self) -> Iterable[Place]:
        for place in super().queue():
            self.touched += 1
            yield place


def long_queue(patience: float = 1e6) -> CountingBook:
    book = CountingBook()
    acquire(book, "holder", patience)
    for n in range(QUEUE):
        acquire(book, f"w{n}", patience)
    return book


def acquire(book: CountingBook, id_: str, patience: float = 1e6, now: float = 0.0) -> Reply:
    command = Acquire(KEY, id_, id_, ttl=30, queue=True, patience=patience)
    return ledger.apply(book, command, now, 0)[0]


def touched_by(book: CountingBook, command: Command, now: float) -> tuple[int, Reply]:
    book.touched = 0
    reply, _ = ledger.apply(book, command, now, 0)
    return book.touched, reply


FEW = 24


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (Acquire(KEY, "new", "new", ttl=30, queue=True), Queued),
        (Acquire(KEY, "w9999", "w9999", ttl=30, queue=True), Queued),
        (Renew(KEY, "w9999", 30), Queued),
        (Renew(KEY, "w0", 30), Queued),
        (Renew(KEY, "holder", 30), object),
        (Release(KEY, "holder"), Released),
        (Release(KEY, "w5000"), Released),
        (Release(KEY, "w5000", bury=60), Released),
    ],
    ids=repr,
)
def test_no_command_walks_the_queue(command: Command, answer: type) -> None:
    count, reply = touched_by(long_queue(), command, now=1)
    assert isinstance(reply, answer)
    assert count <= FEW


def crowd() -> CountingBook:
    """As many holders as there are units."""
    book = CountingBook()
    for n in range(HOLDERS):
        ledger.apply(book, Acquire(KEY, f"h{n}", "h", ttl=30 + n, capacity=HOLDERS), 0, 0)
    return book


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (Acquire(KEY, "new", "new", ttl=30, capacity=HOLDERS), Refused),
        (Acquire(KEY, "new", "new", ttl=30, capacity=HOLDERS, queue=True), Queued),
        (Acquire(KEY, "new", "new", ttl=30, capacity=HOLDERS + 1), Granted),
        (Acquire(KEY, "new", "new", ttl=30, capacity=1000), Refused),
        (Renew(KEY, "h5000", 30), Renewed),
        (Resize(KEY, "h5000", 2, 1), Refused),
        (Release(KEY, "h5000"), Released),
    ],
    ids=repr,
)
def test_no_command_walks_the_holders(command: Command, answer: type) -> None:
    count, reply = touched_by(crowd(), command, now=1)
    assert isinstance(reply, answer)
    assert count <= FEW


def test_a_crowd_is_looked_at_in_part() -> None:
    count, _ = touched_by(crowd(), Inspect(KEY), now=1)
    assert count <= ledger.HOLDERS_SHOWN + FEW


def test_a_dead_front_costs_no_more_than_the_front() -> None:
    book = long_queue()
    count, reply = touched_by(book, Renew(KEY, f"w{FRONT}", 30), now=30)
    assert isinstance(reply, Granted)
    assert count <= 5 * SIGHT


def test_dead_waiters_cost_a_heartbeat_no_more_than_those_in_sight() -> None:
    book = long_queue()
    count, reply = touched_by(book, Renew(KEY, "w9999", 30), now=29)
    assert isinstance(reply, Queued)
    assert count <= SIGHT + FEW


def test_to_be_looked_at_costs_what_is_shown() -> None:
    count, _ = touched_by(long_queue(), Inspect(KEY), now=1)
    assert count <= ledger.WAITERS_SHOWN + FEW


def test_the_alarms_of_what_has_gone_do_not_pile_up() -> None:
    book = MemoryBook()
    for n in range(100_000):
        ledger.apply(book, Acquire(KEY, f"a{n}", "a", ttl=1e6), n, 0)
        ledger.apply(book, Release(KEY, f"a{n}"), n, 0)
    assert len(book._alarms) <= 16
    assert book.idle


def test_the_alarms_of_what_is_renewed_do_not_pile_up() -> None:
    book = MemoryBook()
    ledger.apply(book, Acquire(KEY, "a", "a", ttl=1e6), 0, 0)
    for n in range(100_000):
        ledger.apply(book, Renew(KEY, "a", 1e6), n, 0)
    assert len(book._alarms) <= 18
