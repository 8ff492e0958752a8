"""The state of keys: which events commands and looks make of leases, each one once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from dibs.core.book import MemoryBook
from dibs.core.ledger import apply
from dibs.core.names import fingerprint
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Granted,
    Inspect,
    Release,
    Renew,
    Reply,
    Resize,
    Revoke,
    Status,
)
from dibs.server.key_changes import KeyStates
from dibs.server.lock_events import LockEvent, event_json

KEY = b"lock:jobs/1"
WALL = 1_700_000_000.0


@dataclass
class Watched:
    """A real ledger of one key, and what is known of it."""

    now: float = 1000.0
    told: list[LockEvent] = field(default_factory=list)
    books: dict[bytes, MemoryBook] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = KeyStates(self.told.append, lambda: self.now, lambda: WALL + self.now)

    def elsewhere(self, command: Command) -> Reply:
        """A command that does not pass through this server."""
        book = self.books.setdefault(command.key, MemoryBook())
        reply, _ = apply(book, command, self.now, int((WALL + self.now) * 1e6))
        return reply

    def here(self, command: Command) -> Reply:
        """One that does."""
        reply = self.elsewhere(command)
        self.keys.applied(command, reply)
        return reply

    def pushed_first(self, command: Command) -> Reply:
        """One that does, whose notifications arrive before its answer."""
        book = self.books.setdefault(command.key, MemoryBook())
        reply, notifications = apply(book, command, self.now, int((WALL + self.now) * 1e6))
        for each in notifications:
            self.keys.notified(each)
        self.keys.applied(command, reply)
        return reply

    def status(self, key: bytes = KEY) -> Status:
        reply = self.elsewhere(Inspect(key))
        assert isinstance(reply, Status)
        return reply

    def walk(self) -> None:
        """A walk through the store, a little later."""
        self.now += 0.001
        begun, scan = self.now, self.keys.begin_scan()
        for key in self.books:
            status = self.status(key)
            if status.holders or status.waiting:
                self.keys.observe(status, begun, scan=scan)
        self.keys.end_scan(scan, begun)

    def take(self) -> list[str]:
        """What was told since."""
        told = [f"{event.what} {event.owner}" for event in self.told]
        self.told.clear()
        return told


@pytest.fixture
def seen() -> Watched:
    return Watched()


def acquire(who: str, *, queue: bool = True, ttl: float = 30.0, note: str = "") -> Acquire:
    return Acquire(KEY, f"id-of-{who}", who, ttl, queue=queue, note=note, inbox="here")


def release(who: str) -> Release:
    return Release(KEY, f"id-of-{who}")


def renew(who: str, ttl: float = 30.0) -> Renew:
    return Renew(KEY, f"id-of-{who}", ttl)


def test_commands_tell_exactly_what_happens(seen: Watched) -> None:
    seen.here(acquire("a", note="why"))
    (granted,) = seen.told
    assert (granted.what, granted.lease, granted.note) == ("granted", fingerprint("id-of-a"), "why")
    assert (granted.slots, granted.waited, granted.found) == ((0,), 0.0, False)
    assert granted.token > 0
    assert seen.take() == ["granted a"]
    seen.here(acquire("b"))
    seen.here(acquire("b"))
    seen.now += 5
    seen.here(renew("a"))
    seen.here(release("a"))
    assert seen.told[-1].held_for == 5.0
    assert seen.take() == ["queued b", "renewed a", "released a"]
    seen.here(renew("b"))  # claims what was granted to it
    assert seen.told[-1].waited == 5.0
    assert seen.take() == ["granted b"]
    seen.here(acquire("c"))
    seen.now += 1
    seen.here(release("c"))
    seen.here(release("b"))
    assert seen.take() == ["queued c", "left c", "released b"]
    assert len(seen.keys.all()) == 0


def test_a_lost_lease_is_told_with_the_reason(seen: Watched) -> None:
    seen.here(acquire("a", ttl=10))
    seen.now += 11
    seen.here(renew("a"))
    seen.here(acquire("b", ttl=10))
    seen.here(Revoke(KEY, None, "a test"))
    seen.here(renew("b"))
    assert [(event.what, event.owner, event.reason) for event in seen.told] == [
        ("granted", "a", ""),
        ("expired", "a", ""),
        ("granted", "b", ""),
        ("revoked", "b", "a test"),
        ("expired", "b", "revoked: a test"),
    ]


def test_what_is_freed_by_force_is_held_no_more(seen: Watched) -> None:
    seen.here(acquire("a"))
    seen.here(Revoke(KEY, None, "a test", now=True))
    assert seen.take() == ["granted a", "freed a"]
    assert len(seen.keys.all()) == 0


def test_a_resize_is_told(seen: Watched) -> None:
    seen.here(replace(acquire("a"), capacity=4, units=3))
    seen.here(Resize(KEY, "id-of-a", 1, 1))
    assert seen.told[-1].units == 1
    assert len(seen.told[-1].slots) == 1
    assert seen.take() == ["granted a", "resized a"]


def test_looks_find_what_others_do(seen: Watched) -> None:
    seen.walk()
    seen.elsewhere(acquire("a", ttl=10))
    seen.elsewhere(acquire("b", ttl=10))
    seen.walk()
    assert all(event.found for event in seen.told)
    assert seen.take() == ["granted a", "queued b"]
    seen.now += 3
    seen.elsewhere(release("a"))
    seen.elsewhere(renew("b", 10))
    seen.walk()
    assert seen.told[1].waited == pytest.approx(3, abs=0.1)
    assert seen.take() == ["released a", "granted b"]
    seen.now += 4
    seen.elsewhere(renew("b", 10))
    seen.walk()
    assert seen.take() == ["renewed b"]
    seen.elsewhere(Revoke(KEY, None, "x"))
    seen.walk()
    assert seen.take() == ["revoked b"]
    seen.now += 11
    seen.walk()
    assert seen.take() == ["expired b"]
    assert len(seen.keys.all()) == 0


def test_a_place_that_was_given_up_elsewhere_has_left(seen: Watched) -> None:
    seen.walk()
    seen.elsewhere(acquire("a"))
    seen.elsewhere(acquire("b"))
    seen.walk()
    seen.elsewhere(release("b"))
    seen.walk()
    assert seen.take() == ["granted a", "queued b", "left b"]


def test_a_look_that_took_long_is_no_renewal(seen: Watched) -> None:
    seen.walk()
    seen.elsewhere(acquire("a"))
    seen.walk()
    assert seen.take() == ["granted a"]
    asked, status = seen.now, seen.status()
    seen.now += 5
    seen.keys.observe(status, asked)
    assert seen.take() == []
    seen.elsewhere(renew("a"))
    seen.elsewhere(renew("a", 40))
    asked, status = seen.now, seen.status()
    seen.now += 2
    seen.keys.observe(status, asked)
    assert seen.take() == ["renewed a"]


def test_places_that_no_look_names_are_not_kept_for_ever(seen: Watched) -> None:
    for who in "abcd":
        seen.here(acquire(who))
    seen.elsewhere(release("c"))
    status = seen.status()
    seen.take()
    seen.now += 0.01
    seen.keys.observe(replace(status, waiters=status.waiters[:1]), seen.now)
    assert seen.take() == []
    known = seen.keys._states.get(KEY)
    assert known is not None
    assert [place.owner for place in known.waiters.values()] == ["b", "d"]


def test_what_was_so_before_is_no_news(seen: Watched) -> None:
    seen.elsewhere(acquire("a"))
    seen.now += 1
    late = Watched(seen.now, books=seen.books)
    late.elsewhere(replace(acquire("b"), key=b"lock:new"))
    late.walk()
    assert late.take() == ["granted b"]
    late.elsewhere(release("a"))
    late.walk()
    assert late.take() == ["released a"]


def test_what_one_source_has_told_the_other_does_not_tell_again(seen: Watched) -> None:
    seen.walk()
    command = acquire("a")
    reply = seen.elsewhere(command)
    seen.walk()
    seen.keys.applied(command, reply)
    seen.here(acquire("b"))
    seen.walk()
    assert [each for each in seen.take() if "renewed" not in each] == ["granted a", "queued b"]
    reply = seen.elsewhere(release("a"))
    seen.walk()
    seen.keys.applied(release("a"), reply)
    assert seen.take()[0] == "released a"
    assert "released a" not in seen.take()


def test_a_look_that_began_before_an_answer_came_is_not_believed(seen: Watched) -> None:
    begun, before = seen.now, seen.status()
    seen.now += 0.1
    seen.here(acquire("a"))
    seen.take()
    seen.now += 0.1
    seen.keys.observe(before, begun)
    seen.keys.end_scan(1, begun)
    assert seen.take() == []
    assert len(seen.keys.all()) == 1


def test_a_look_that_began_before_the_last_end_is_not_believed(seen: Watched) -> None:
    seen.here(acquire("a"))
    asked, status = seen.now, seen.status()
    seen.now += 0.5
    seen.here(release("a"))
    assert (seen.take(), len(seen.keys.all())) == (["granted a", "released a"], 0)
    seen.keys.observe(status, asked)
    assert (seen.take(), len(seen.keys.all())) == ([], 0)
    seen.now += 0.5
    seen.elsewhere(acquire("b"))
    seen.keys.observe(seen.status(), seen.now)
    assert seen.take() == ["granted b"]


def test_of_two_looks_the_one_that_began_later_is_believed(seen: Watched) -> None:
    seen.elsewhere(acquire("a"))
    seen.keys.begin_scan()
    asked, status = seen.now, seen.status()
    seen.keys.observe(status, asked)
    seen.now += 1.0
    seen.elsewhere(release("a"))
    seen.keys.observe(seen.status(), seen.now)
    seen.keys.observe(status, asked + 0.5)
    assert seen.take() == ["granted a", "released a"]


def test_whoever_was_granted_units_that_another_held_shows_that_it_held_no_more(
    seen: Watched,
) -> None:
    """A writer waits for a reader, is granted by a notification, and released at another server."""

    def wish(who: str, units: int) -> Acquire:
        return replace(acquire(who), units=units, capacity=MANY)

    seen.elsewhere(wish("reader", 1))
    seen.here(wish("writer", MANY))
    seen.here(wish("later", 1))
    seen.elsewhere(release("reader"))
    seen.here(renew("writer"))
    seen.elsewhere(release("writer"))
    seen.take()
    seen.here(renew("later"))
    assert seen.take() == ["released writer", "granted later"]


def test_units_kept_by_nobody_are_no_lease(seen: Watched) -> None:
    seen.walk()
    seen.elsewhere(acquire("a"))
    seen.elsewhere(replace(release("a"), retain=60))
    seen.walk()
    assert seen.take() == []


def test_an_event_never_tells_an_id(seen: Watched) -> None:
    for act in _everything():
        seen.here(act())
        seen.now += 1
    assert len(seen.told) > 5
    assert "id-of" not in str([event_json(event) for event in seen.told])


def _everything() -> list[Callable[[], Command]]:
    return [
        lambda: acquire("a"),
        lambda: acquire("b"),
        lambda: renew("a"),
        lambda: Revoke(KEY, fingerprint("id-of-a"), "x"),
        lambda: release("a"),
        lambda: renew("b"),
        lambda: release("b"),
    ]


def test_a_grant_without_a_ledgers_word_is_taken_as_it_is(seen: Watched) -> None:
    """Of a long poll only the end passes by."""
    seen.keys.applied(acquire("a"), Granted(7, (0,), 30.0))
    assert seen.told[0].token == 7


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_shown_with_two_holders(capacity: int, seed: int) -> None:
    """Commands of this server and of others, pushes before the answer that caused them, late looks."""
    seen, random = Watched(), Random(seed)
    seen.walk()
    for step in range(120):
        who = random.choice("abcdef")
        commands: list[Command] = [
            Resize(KEY, f"id-of-{who}", random.randint(1, capacity), step),
            replace(acquire(who, ttl=4.0), capacity=capacity),
            replace(acquire(who, ttl=4.0), capacity=capacity),
            replace(release(who), retain=random.choice([0.0, 0.0, 0.0, 1.0])),
            renew(who, 4.0),
            Revoke(KEY, None, "x", now=random.random() < 0.5),
        ]
        command = random.choice(commands)
        random.choice([seen.here, seen.here, seen.pushed_first, seen.elsewhere])(command)
        seen.now += random.choice([0.0, 0.01, 0.5, 3.0])
        if random.random() < 0.2:
            seen.walk()
    check_no_overlap(seen.told)


def check_no_overlap(told: list[LockEvent]) -> None:
    """Each hold of a slot ends, in the order of the events and by their times, before the next begins."""
    holds: dict[str, LockEvent] = {}
    for event in told:
        if event.what in ("granted", "resized"):
            begun = holds.pop(event.lease, None) if event.what == "resized" else None
            for other in holds.values():
                assert not set(other.slots) & set(event.slots), (other, event)
            holds[event.lease] = replace(event, at=begun.at) if begun else event
        elif event.what in ("released", "expired", "freed"):
            granted = holds.pop(event.lease, None)
            assert event.held_for is not None
            assert event.held_for >= 0
            if granted is not None:
                assert event.at - granted.at == pytest.approx(event.held_for, abs=0.001)
    ended: dict[int, float] = {}
    for event in told:
        for slot in event.slots:
            if event.what == "granted":
                assert event.at >= ended.get(slot, 0.0) - 0.001, event
            elif event.what in ("released", "expired", "freed"):
                ended[slot] = event.at


@pytest.mark.parametrize("here", [True, False])
def test_a_reader_that_upgrades_holds_all_along_and_alone(seen: Watched, here: bool) -> None:
    act = seen.here if here else seen.elsewhere
    for who, ttl in (("a", 30.0), ("b", 1.0)):
        act(replace(acquire(who, ttl=ttl), key=b"rwlock:x", capacity=MANY))
    seen.walk()
    seen.now += 1.5
    act(Resize(b"rwlock:x", "id-of-a", MANY, 1))
    seen.walk()
    assert seen.take() == ["granted a", "granted b", "expired b", "resized a"]


def test_many_slots_are_not_remembered(seen: Watched) -> None:
    wish = Acquire(b"semaphore:x", "id-of-a", "a", 30.0, units=1024, capacity=1024)
    seen.here(wish)
    known = seen.keys._states.get(wish.key)
    assert known is not None
    assert [known.slots, *(each.slots for each in known.holds.values())] == [{}, ()]
    seen.here(Release(wish.key, wish.id))
    assert [known.ended, *(event.slots for event in seen.told)] == [{}, (), ()]


def test_an_expiry_is_told_at_its_own_time_before_the_next_grant(seen: Watched) -> None:
    seen.here(acquire("a", ttl=4))
    seen.here(acquire("b"))
    seen.now += 4.8
    seen.pushed_first(renew("b"))
    ended, granted = seen.told[-2:]
    assert (ended.what, ended.owner, ended.held_for) == ("expired", "a", 4.0)
    assert ended.at == pytest.approx(WALL + 1004.0)
    assert (granted.what, granted.owner) == ("granted", "b")
