"""The book in memory: sums, order, and what is over."""

from dataclasses import replace

import pytest

from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry, Tombstone, first_release


def hold(id_: str, expires: float = 10, units: int = 1) -> Hold:
    return Hold(id_, id_, 1, units, (), 10, expires)


def place(id_: str, arrival: int, priority: int = 0, expires: float = 10) -> QueueEntry:
    return QueueEntry(id_, id_, 1, priority, arrival, 10, 10, expires)


@pytest.fixture
def book() -> MemoryBook:
    return MemoryBook()


def test_an_id_has_one_entry_at_most(book: MemoryBook) -> None:
    book.put(place("a", 1))
    book.put(hold("a", units=3))
    assert (book.waiting, book.used, len(book.entries())) == (0, 3, 1)
    book.put(Tombstone("a", 10, 10))
    assert (book.waiting, book.used, list(book.holds())) == (0, 0, [])


def test_used_is_the_sum_of_the_units(book: MemoryBook) -> None:
    book.put(hold("a", units=2))
    book.put(hold("b", units=3))
    assert book.used == 5
    book.remove(book.get("a") or hold("a"))
    assert book.used == 3


def test_units_change_between_remove_and_put(book: MemoryBook) -> None:
    entry = hold("a", units=2)
    book.put(entry)
    book.remove(entry)
    entry.units = 5
    book.put(entry)
    assert book.used == 5


def test_the_queue_is_by_priority_then_arrival(book: MemoryBook) -> None:
    for entry in (place("c", 3), place("a", 1), place("u", 4, priority=1), place("b", 2)):
        book.put(entry)
    places = list(book.queue())
    assert [entry.id for entry in places] == ["u", "a", "b", "c"]
    assert [book.ahead_of(entry) for entry in places] == [0, 1, 2, 3]
    book.remove(places[1])
    assert [book.ahead_of(entry) for entry in book.queue()] == [0, 1, 2]


def test_what_was_extended_ends_at_its_new_time(book: MemoryBook) -> None:
    entry = hold("a", expires=1)
    book.put(entry)
    book.put(hold("b", expires=2))
    entry.expires = 3
    book.put(entry)
    assert [each.id for each in book.ended(5, 1)] == ["b"]
    assert [each.id for each in book.ended(5, 2)] == ["a"]


def test_what_is_over_is_told_once(book: MemoryBook) -> None:
    book.put(hold("a", expires=5))
    book.put(place("b", 1, expires=7))
    assert book.ended(4.9, 9) == ()
    assert [entry.id for entry in book.ended(5, 9)] == ["a"]


def test_what_was_prolonged_is_not_over(book: MemoryBook) -> None:
    entry = hold("a", expires=5)
    book.put(entry)
    entry.expires = 9
    book.put(entry)
    assert list(book.ended(8, 9)) == []
    assert [entry.id for entry in book.ended(9, 9)] == ["a"]


def test_what_was_cut_short_is_over_earlier(book: MemoryBook) -> None:
    book.put(hold("a", expires=50))
    book.put(Tombstone("a", 5, 5))
    assert [type(entry) for entry in book.ended(5, 9)] == [Tombstone]


def test_an_entry_that_was_replaced_is_told_as_it_is_now(book: MemoryBook) -> None:
    first = hold("a", expires=5)
    book.put(first)
    book.put(replace(first, expires=5, state="retained"))
    (entry,) = book.ended(6, 9)
    assert isinstance(entry, Hold)
    assert entry.state == "retained"


def test_a_book_without_entries_is_idle(book: MemoryBook) -> None:
    assert book.idle
    book.put(Tombstone("a", 5, 5))
    assert not book.idle


def test_units_come_free_when_the_first_hold_ends(book: MemoryBook) -> None:
    assert first_release(book) == float("inf")
    book.put(hold("a", expires=9))
    book.put(hold("b", expires=4))
    assert first_release(book) == 4


def test_thousands_of_tombstones_cost_no_time_when_a_hold_comes_and_goes() -> None:
    looked_at: list[str] = []

    def expires_at(entry: Entry) -> float:
        looked_at.append(entry.id)
        return entry.expires

    book = MemoryBook(view=expires_at)
    for number in range(1000):
        book.put(Tombstone(f"tombstone {number}", 100, 100))
    looked_at.clear()
    for number in range(100):
        book.put(hold(f"hold {number}"))
        book.remove(hold(f"hold {number}"))
    assert len(looked_at) < 100 * 10
