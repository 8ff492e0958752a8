"""One command does a bounded part of the work, and later ones the rest."""

from typing import Any

import pytest

from dibs.core import ledger, transition
from dibs.core.book import Entry, MemoryBook
from dibs.core.timing import BATCH_STEPS, LEAST_STEPS
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Lost,
    Queued,
    Refused,
    Release,
    Renew,
    Reply,
    Status,
)

KEY = b"semaphore:k"
CROWD = 1000
STEPS = 64
"""How many entries a command expires or serves, in Lua and SQL, too."""
SHOWN = 100
"""How many holders and waiters a status lists."""


def ask(book: MemoryBook, command: Command, now: float = 0.0) -> tuple[Reply, int]:
    """The reply, and how many others are notified."""
    reply, notifications = ledger.apply(book, command, now, 0)
    return reply, len(notifications)


def wish(name: str, capacity: int = 1, **more: Any) -> Acquire:
    more = {"waiter_ttl": 1e6, "inbox": "there", **more}
    return Acquire(KEY, name, "o", 30.0, capacity=capacity, queue=True, **more)


def book_of(count: int, **more: Any) -> MemoryBook:
    book = MemoryBook()
    for n in range(count):
        ask(book, wish(f"w{n}", **more))
    return book


def status(book: MemoryBook, now: float = 0.0) -> Status:
    reply, _ = ask(book, Inspect(KEY), now)
    assert isinstance(reply, Status)
    return reply


def looks_until(waiting: int, book: MemoryBook) -> int:
    """How many inspections it takes until so many wait."""
    looks = 0
    while status(book).waiting > waiting:
        looks += 1
    return looks


def test_a_smaller_capacity_refuses_a_crowd_step_by_step() -> None:
    book = book_of(CROWD, units=2, capacity=2)
    assert ask(book, wish("new"))[1] <= STEPS + 1
    assert looks_until(1, book) <= CROWD // STEPS + 1


def test_a_greater_capacity_grants_a_crowd_step_by_step() -> None:
    book = book_of(CROWD)
    reply, told = ask(book, wish("new", capacity=10 * CROWD))
    assert isinstance(reply, Queued), "nobody passes those that are not served yet"
    assert told <= STEPS + 1
    assert reply.recheck_in == 0, "there is more to do at once"
    assert len(status(book).waiters) == SHOWN
    assert looks_until(0, book) <= CROWD // STEPS + 1
    assert status(book).holding == CROWD + 1
    assert len(status(book).holders) == SHOWN


@pytest.mark.parametrize("lock_delay", [0.0, 60.0])
def test_a_crowd_that_ends_at_once_is_cleared_step_by_step(lock_delay: float) -> None:
    book = book_of(CROWD, capacity=CROWD, lock_delay=lock_delay)
    assert ask(book, Renew(KEY, f"w{CROWD - 1}", 30.0), 30.0)[0] == Lost(), "nor is it renewed"
    again, _ = ask(book, wish(f"w{CROWD - 2}"), 30.0)
    assert not isinstance(again, Granted)
    looks = 0
    while any(each.state == "held" for each in book.holds()):
        found = status(book, 30.0)
        assert all(each.expires_in >= 0 for each in found.holders)
        looks += 1
    assert looks <= CROWD // STEPS + 1


def test_a_batch_is_bounded_too() -> None:
    book, batch = book_of(CROWD), ledger.StepBudget()
    commands: list[Command] = [wish("new", 10 * CROWD), *[Inspect(KEY)] * 99]
    told = sum(len(ledger.apply(book, each, 0.0, 0, batch)[1]) for each in commands)
    assert BATCH_STEPS <= told <= BATCH_STEPS + 100 * (LEAST_STEPS + 1)


def test_thousands_of_tombstones_cost_no_time_when_a_hold_comes_and_goes() -> None:
    looked_at = 0

    def expires_at(entry: Entry) -> float:
        nonlocal looked_at
        looked_at += 1
        return entry.expires

    book = MemoryBook(view=expires_at)
    for n in range(1000):
        ask(book, Release(KEY, f"ended {n}", tombstone=60.0))
    looked_at = 0
    for n in range(100):
        ask(book, wish(f"w{n}"))
        ask(book, Release(KEY, f"w{n}"))
    assert looked_at < 100 * 30


@pytest.mark.parametrize(("dead", "is_seen"), [(63, True), (64, False)])
def test_64_waiters_are_looked_at(dead: int, *, is_seen: bool) -> None:
    """Behind them, whoever asks is granted."""
    book = book_of(1 + dead)
    ask(book, wish("alive"))
    ask(book, Renew(KEY, "alive", 30.0), 20.0)
    ask(book, Release(KEY, "w0"), 21.0)
    assert ([hold.id for hold in book.holds()] == ["alive"]) == is_seen
    assert isinstance(ask(book, Renew(KEY, "alive", 30.0), 21.0)[0], Granted)


def test_a_key_has_a_bounded_number_of_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transition, "MAX_HOLDERS", 3)
    book = book_of(3, capacity=3)
    refused, _ = ask(book, Acquire(KEY, "try", "o", 30.0, capacity=9))
    assert isinstance(refused, Refused)
    assert refused.reason == "held"
    assert isinstance(ask(book, wish("next", capacity=9))[0], Queued)
    ask(book, Release(KEY, "w0"))
    assert isinstance(ask(book, Renew(KEY, "next", 30.0))[0], Granted)


def test_waiters_that_have_expired_are_not_granted_before_they_are_cleared() -> None:
    book = book_of(CROWD)
    brief = {f"brief{n}" for n in range(CROWD)}
    for name in brief:
        ask(book, wish(name, waiter_ttl=4.0))
    ask(book, wish("new", capacity=10 * CROWD), 4.5)
    while status(book, 4.5).waiting:
        assert not brief & {hold.id for hold in book.holds()}
    assert status(book, 4.5).holding == CROWD + 1
