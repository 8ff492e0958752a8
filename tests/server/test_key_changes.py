"""The state of keys: which events commands and looks make of leases, each one once."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.book import MemoryBook
from dibs.core.ledger import apply
from dibs.core.names import fingerprint
from dibs.errors import Forbidden
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Inspect,
    Page,
    Release,
    Renew,
    Reply,
    Resize,
    Revoke,
    Status,
)
from dibs.server import activity, key_changes
from dibs.server.key_changes import KeyStates
from dibs.server.lock_events import LockEvent, event_json
from tests.server.inside import event_log, events_of
from tests.server.world import World, send
from tests.servers.waiting import wait_until

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


def upgraded(who: str = "a") -> Resize:
    return Resize(KEY, f"id-of-{who}", MANY, 1)


def reading(who: str, ttl: float = 30.0) -> Acquire:
    return replace(acquire(who, ttl=ttl), capacity=MANY)


EXAMPLES: dict[str, list[tuple[str, str, Command | float | None]]] = {
    "a line": [
        ("here", "granted a", acquire("a")),
        ("here", "queued b", acquire("b")),
        ("here", "", acquire("b")),
        ("here", "renewed a", renew("a")),
        ("here", "released a", release("a")),
        ("here", "granted b", renew("b")),  # which claims what was granted to it
        ("here", "queued c", acquire("c")),
        ("here", "left c", release("c")),
        ("here", "freed b", Revoke(KEY, None, "a test", now=True)),
    ],
    "what others do": [
        ("scan", "", None),
        ("elsewhere", "", acquire("a", ttl=10)),
        ("elsewhere", "", acquire("b", ttl=10)),
        ("scan", "granted a, queued b", None),
        ("elsewhere", "", release("a")),
        ("elsewhere", "", renew("b", 10)),
        ("scan", "released a, granted b", None),
        ("wait", "", 4.0),
        ("elsewhere", "", renew("b", 10)),
        ("scan", "renewed b", None),
        ("elsewhere", "", acquire("c")),
        ("scan", "queued c", None),
        ("elsewhere", "", release("c")),
        ("scan", "left c", None),
        ("elsewhere", "", Revoke(KEY, None, "x")),
        ("scan", "revoked b", None),
        ("wait", "", 11.0),
        ("scan", "expired b", None),
    ],
    "units that nobody holds": [
        ("scan", "", None),
        ("elsewhere", "", acquire("a")),
        ("elsewhere", "", replace(release("a"), retain=60)),
        ("scan", "", None),
    ],
    "an upgrade": [
        ("here", "granted a", reading("a")),
        ("here", "granted b", reading("b", 1.0)),
        ("wait", "", 1.5),
        ("here", "expired b, resized a", upgraded()),
        ("here", "released a", release("a")),
    ],
    "an upgrade elsewhere": [
        ("elsewhere", "", reading("a")),
        ("elsewhere", "", reading("b", 1.0)),
        ("scan", "granted a, granted b", None),
        ("wait", "", 1.5),
        ("elsewhere", "", upgraded()),
        ("scan", "expired b, resized a", None),
        ("here", "released a", release("a")),
    ],
}
"""Steps, and the events of each."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_change_is_one_event(seen: Watched, example: str) -> None:
    events = list[LockEvent]()
    for how, told, what in EXAMPLES[example]:
        match what:
            case None:
                seen.walk()
            case float():
                seen.now += what
            case _:
                getattr(seen, how)(what)
        events += seen.told
        assert ", ".join(seen.take()) == told, (how, what)
    assert seen.keys.all() == []
    assert "id-of" not in str([event_json(each) for each in events])


def test_events_say_how_long_and_why(seen: Watched) -> None:
    seen.here(acquire("a", note="why", ttl=10))
    (granted,) = seen.told
    assert (granted.what, granted.lease, granted.note) == ("granted", fingerprint("id-of-a"), "why")
    assert (granted.slots, granted.waited, granted.found) == ((0,), 0.0, False)
    assert granted.token > 0
    seen.here(acquire("b"))
    seen.now += 5
    seen.here(release("a"))
    seen.here(renew("b"))
    assert (seen.told[-2].held_for, seen.told[-1].waited) == (5.0, 5.0)
    seen.here(Revoke(KEY, None, "a test"))
    seen.here(renew("b"))
    assert [each.reason for each in seen.told[-2:]] == ["a test", "revoked: a test"]


def test_a_look_that_began_before_the_last_change_is_ignored(seen: Watched) -> None:
    asked, free = seen.now, seen.status()
    seen.now += 0.1
    seen.here(acquire("a"))
    seen.keys.observe(free, asked)
    assert seen.take() == ["granted a"]
    asked, held = seen.now, seen.status()
    seen.now += 0.5
    seen.here(release("a"))
    seen.keys.observe(held, asked)
    assert (seen.take(), seen.keys.all()) == (["released a"], [])
    seen.now += 0.5
    seen.elsewhere(acquire("b"))
    seen.keys.observe(seen.status(), seen.now)
    seen.keys.observe(free, seen.now - 0.1)
    assert seen.take() == ["granted b"]


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_shown_with_two_holders(capacity: int, seed: int) -> None:
    """Commands of this server and of others, pushes before the answer that caused them, late looks."""
    seen, random, looks = Watched(), Random(seed), list[tuple[Status, float]]()
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
        if random.random() < 0.3:
            looks.append((seen.status(), seen.now))
        if looks and random.random() < 0.3:
            seen.keys.observe(*looks.pop(random.randrange(len(looks))))
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


def test_of_many_keys_the_oldest_are_forgotten(
    seen: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_changes, "MAX_KEYS", 3)
    for number in range(5):
        seen.here(replace(acquire("a"), key=b"lock:%d" % number))
    assert [each.key for each in seen.keys.all()] == [b"lock:2", b"lock:3", b"lock:4"]


def test_where_nothing_can_be_listed_what_expired_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forbidden(*_: object) -> Page:
        raise Forbidden("no SCAN for this user")

    monkeypatch.setattr(activity, "FOLLOWED", 0.01)
    monkeypatch.setattr(activity, "UNFOLLOWED", 0.01)
    monkeypatch.setattr(key_changes, "LATE", 0.0)
    with World.over() as world:
        monkeypatch.setattr(events_of(world), "_scan", forbidden)
        keys = events_of(world).keys
        for number in range(21):
            ttl = 60.0 if number == 20 else 1.0
            wish = Acquire(b"lock:%d" % number, "a" * 22, "me", ttl, queue=True, waiter_ttl=1.0)
            send(world.client(), wish, replace(wish, id="b" * 22, ttl=60.0))
        wait_until(lambda: [each.key for each in keys.all()] == [b"lock:20"], "the others ended")
        wait_until(lambda: not keys.all()[0].waiters, "the waiter is forgotten")


@given(total=st.integers(0, 30), at=st.integers(-5, 40), most=st.integers(1, 12))
def test_a_reader_of_the_log_resumes_or_learns_that_it_cannot(
    total: int, at: int, most: int
) -> None:
    log = event_log(10)
    for number in range(1, total + 1):
        log.add(LockEvent("granted", b"lock:%d" % number, 1.0))
    assert log.last == total
    assert log.has_after(at) == (max(total - 10, 0) <= at <= total)
    if log.has_after(at):
        numbers = [int(each.name) for each in log.after(at, most)]
        assert numbers == list(range(at + 1, total + 1))[:most]
