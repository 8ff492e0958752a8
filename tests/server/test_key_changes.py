"""The state of keys: which events commands and looks make of leases, each one once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from dibs.core.book import MemoryBook
from dibs.core.ledger import apply
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Inspect,
    Notification,
    Release,
    Renew,
    Reply,
    Resize,
    Revoke,
    Status,
)
from dibs.server.key_changes import KeyStates
from dibs.server.lock_events import LockEvent, event_json
from tests.server.torture.truth import StreamJudge

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
        return self._apply(command)[0]

    def here(self, command: Command, *, pushed_first: bool = False) -> None:
        """One that does; its notifications may arrive before its answer."""
        reply, notifications = self._apply(command)
        for each in notifications if pushed_first else ():
            self.keys.notified(each)
        self.keys.applied(command, reply)

    def _apply(self, command: Command) -> tuple[Reply, Sequence[Notification]]:
        book = self.books.setdefault(command.key, MemoryBook())
        return apply(book, command, self.now, int((WALL + self.now) * 1e6))

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
        told = [f"{event.what} {event.owner}" for event in self.told]
        self.told.clear()
        return told


@pytest.fixture
def seen() -> Watched:
    return Watched()


def acquire(who: str, ttl: float = 30.0, **more: Any) -> Acquire:
    return Acquire(KEY, f"id-of-{who}", who, ttl, queue=True, inbox="here", **more)


def release(who: str) -> Release:
    return Release(KEY, f"id-of-{who}")


def renew(who: str, ttl: float = 30.0) -> Renew:
    return Renew(KEY, f"id-of-{who}", ttl)


UPGRADE = Resize(KEY, "id-of-a", MANY, 1)

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
        ("elsewhere", "", acquire("a", 10)),
        ("elsewhere", "", acquire("b", 10)),
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
    "a holder that renews when it is revoked": [
        ("here", "granted a", acquire("a")),
        ("elsewhere", "", Revoke(KEY, None, "x")),
        ("here", "revoked a", renew("a")),
        ("here", "", renew("a")),
        ("scan", "", None),
        ("wait", "", 31.0),
        ("scan", "expired a", None),
        ("here", "granted b", acquire("b")),
        ("here", "revoked b", Revoke(KEY, None, "x")),
        ("here", "", renew("b")),
        ("scan", "", None),
        ("here", "released b", release("b")),
    ],
    "an upgrade": [
        ("here", "granted a", acquire("a", capacity=MANY)),
        ("here", "granted b", acquire("b", 1.0, capacity=MANY)),
        ("wait", "", 1.5),
        ("here", "expired b, resized a", UPGRADE),
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
            case _ if how == "here":
                seen.here(what)
            case _:
                seen.elsewhere(what)
        events += seen.told
        assert ", ".join(seen.take()) == told, (how, what)
    assert seen.keys.all() == []
    assert "id-of" not in str([event_json(each) for each in events])


@pytest.mark.parametrize("own", [True, False])
def test_an_expiry_is_own_if_this_server_saw_the_last_renewal(seen: Watched, own: bool) -> None:
    seen.here(acquire("a", 10))
    seen.now += 5
    (seen.here if own else seen.elsewhere)(renew("a", 10))
    seen.walk()
    seen.now += 11
    seen.walk()
    last = seen.told[-1]
    assert (last.what, last.is_own) == ("expired", own)


def test_a_request_stays_in_the_queue_while_it_waits(seen: Watched) -> None:
    """Without looks, as at a store that lists no keys. Its heartbeats do not pass through here."""
    seen.here(acquire("a", 120.0))
    request = acquire("b")
    seen.elsewhere(request)
    seen.keys.entered(request, 60.0)
    seen.now += 59
    seen.keys.drop_expired()
    seen.keys.left(KEY, "id-of-another")
    assert seen.take() == ["granted a", "queued b"]
    seen.keys.left(KEY, request.id)
    assert seen.take() == ["left b"]


def test_a_look_that_began_before_the_last_change_is_ignored(seen: Watched) -> None:
    seen.here(acquire("a"))
    asked, held = seen.now, seen.status()
    seen.now += 0.5
    seen.here(release("a"))
    seen.keys.observe(held, asked)
    assert (seen.take(), seen.keys.all()) == (["granted a", "released a"], [])


@pytest.mark.parametrize("seed", range(12))
def test_no_slot_is_shown_with_two_holders(seed: int) -> None:
    """Commands of this server and of others, pushes before the answer that caused them, late looks."""
    seen, random, looks = Watched(), Random(seed), list[tuple[Status, float]]()
    capacity = seed % 3 + 1
    seen.walk()
    for step in range(120):
        who = random.choice("abcdef"[: 1 + seed // 2])
        commands: list[Command] = [
            Resize(KEY, f"id-of-{who}", random.randint(1, capacity), step),
            acquire(who, 4.0, capacity=capacity),
            acquire(who, 4.0, capacity=capacity),
            replace(release(who), retain=random.choice([0.0, 0.0, 0.0, 1.0])),
            renew(who, 4.0),
            Revoke(KEY, None, "x", now=random.random() < 0.5),
        ]
        command = random.choice(commands)
        if random.random() < 0.25:
            seen.elsewhere(command)
        else:
            seen.here(command, pushed_first=random.random() < 0.33)
        seen.now += random.choice([0.0, 0.01, 0.5, 3.0])
        if random.random() < 0.2:
            seen.walk()
        if random.random() < 0.3:
            looks.append((seen.status(), seen.now))
        if looks and random.random() < 0.3:
            seen.keys.observe(*looks.pop(random.randrange(len(looks))))
    judge = StreamJudge("a stream")
    for event in seen.told:
        judge.take("message", event_json(event))
    assert judge.lies == []
    assert judge.counts["judged"]
