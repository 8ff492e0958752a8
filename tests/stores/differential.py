"""The ledger in Python beside the one that a database runs: both must answer and notify alike.

Plans are as in `tests.core.plans`, and `"sweep"` in one deletes idle keys.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Failed,
    Inspect,
    Notification,
    Release,
    Renew,
    Reply,
    Resize,
)
from dibs.testing import ManualClock
from dibs.testing.clock import EPOCH
from dibs.testing.conformance.vectors import close, plain, without_passing_heads
from tests.core.plans import LINE, beat, crowd, leave, wish

type Outcome = tuple[Sequence[Reply], Sequence[Notification]]

OWN, OTHER = "here", "there"
"""The inbox of the client that asks, and that of another one."""


class Subject(Protocol):
    """A ledger in a database."""

    omits_passing_heads: bool
    """It notifies no waiter that it is next, if it is granted in the same batch."""
    sweeps: bool

    def empty(self) -> None: ...

    def apply(self, batch: Sequence[Command], time: ManualClock) -> Outcome: ...

    def sweep(self, time: ManualClock, keys: Sequence[bytes]) -> None:
        """Delete idle keys, as if they had been idle for long."""

    def check(self) -> None:
        """Raise if the database contradicts itself."""


class Reference:
    """The ledger over books in memory."""

    def __init__(self, time: ManualClock) -> None:
        self.time = time
        self.floor = 0
        self.books: dict[bytes, MemoryBook] = {}

    def apply(self, batch: Sequence[Command]) -> Outcome:
        replies: list[Reply] = []
        notifications: list[Notification] = []
        bound = ledger.StepBudget()
        for command in batch:
            book = self.books.setdefault(command.key, MemoryBook(self.floor))
            now, stamp = self.time.now(), self.time.stamp()
            reply, more = ledger.apply(book, command, now, stamp, bound)
            replies.append(reply)
            notifications += more
        return replies, notifications

    def sweep(self) -> None:
        for key in list(self.books):
            if self.books[key].idle:
                self.floor = max(self.floor, self.books.pop(key).last)


def follow(plan: Sequence[Any], subject: Subject) -> None:
    """Raises `AssertionError` where an answer differs."""
    time, ids = ManualClock(), dict[str, str]()
    reference = Reference(time)
    subject.empty()
    for step in plan:
        if isinstance(step, float):
            time.advance(step)
        elif isinstance(step, int):
            time.step_stamp(step / 1e6)
        elif step == "sweep":
            compare([Inspect(key) for key in reference.books], subject, reference, ids)
            subject.sweep(time, list(reference.books))
            reference.sweep()
        else:
            ids |= {fingerprint(each.id): each.id for each in step if isinstance(each, Acquire)}
            compare(step, subject, reference, ids)
        subject.check()


def compare(
    batch: Sequence[Command], subject: Subject, reference: Reference, ids: dict[str, str]
) -> None:
    expected, sent = reference.apply(batch)
    replies, notifications = subject.apply(batch, reference.time)
    for command, reply, wanted in zip(batch, replies, expected, strict=True):
        if isinstance(wanted, Failed):  # some flaws are put in other words
            assert isinstance(reply, Failed), command
            assert reply.reason == wanted.reason, command
        else:
            assert close(plain(reply), plain(wanted)), f"{command}: {reply}, not {wanted}"
    if subject.omits_passing_heads:
        sent = [*without_passing_heads(sent)]
    assert counted(notifications, ids) == counted(sent, ids), batch


def counted(notifications: Sequence[Notification], ids: dict[str, str]) -> Counter[Notification]:
    """Those that somebody gets, as a multiset.

    Of equal ones in a transaction PostgreSQL sends only one to others. A proof need only be good: each store
    has another hash.
    """
    rounded = (
        replace(
            each,
            granted_at=round(each.granted_at, 5),
            claim_timeout=round(each.claim_timeout, 5),
            proof=str(is_proven(each, ids[each.lease])) if each.proof else "",
        )
        for each in notifications
        if each.inbox
    )
    return Counter({each: n if each.inbox == OWN else 1 for each, n in Counter(rounded).items()})


SWEPT: list[Any] = [
    [wish("a"), wish("b", inbox="here")],
    "sweep",
    [leave("a"), leave("b"), Inspect(LINE)],
    "sweep",
    -3_600_000_000,
    [wish("a"), Release(b"lock:c", "nothing"), Inspect(LINE)],
    31.0,
    "sweep",
    "sweep",
    [wish("c")],
]
"""Tokens still rise after a key was deleted, also if the wall clock was stepped back."""

PLANS: list[list[Any]] = [
    SWEPT,
    # a mutex that nobody else holds or wants
    [[wish("a")], "sweep", [leave("a"), Inspect(LINE)]],
    [[wish("a")], [leave("a")], [Inspect(LINE)], [wish("b", units=2, capacity=2)], [Inspect(LINE)]],
    [[wish("a", lock_delay=4.0)], [Inspect(LINE)], 31.0, [wish("b", queue=False)], [leave("a")]],
    [[wish("a", ttl=3.0)], 3.5, [leave("a")], [wish("b")], [leave("b"), Inspect(LINE)]],
    [[wish("a", capacity=3)], [Inspect(LINE)]],
    [[wish("a", floor=2 * EPOCH)], [leave("a")], [wish("b")]],
    [6_000_000_000_000_000, [wish("a")], [leave("a")], [wish("b")]],
    [[wish("a", units=MANY, capacity=MANY)], [Resize(LINE, "a", 600_000, 1)], [Inspect(LINE)]],
    [[wish("a")], [leave("a")], [wish("b", capacity=3)], [Inspect(LINE)]],
    [crowd(4), [leave("w1"), leave("w4"), Renew(LINE, "w3", 30.0)], [Inspect(LINE)]],
    [[wish("a")], [leave("a", retain=4.0, tombstone=6.0)], 5.0, [Inspect(LINE)], 5.5, [wish("a")]],
    [  # a waiter that becomes a hold in a row of its own, beside the one in the key's row
        [wish("a", capacity=2), wish("b", capacity=2), wish("c", capacity=2)],
        [leave("b")],
        [Renew(LINE, "c", 30.0)],
        [Renew(LINE, "c", 60.0), Inspect(LINE)],
        [leave("a")],
        [Renew(LINE, "c", 60.0), Inspect(LINE), leave("c")],
        [Inspect(LINE)],
    ],
    [  # a key that has had two holds is empty again, in one batch
        [
            *(wish("a", capacity=2), wish("b", capacity=2), leave("b"), leave("a")),
            *(wish("c", capacity=2), Inspect(LINE), wish("d", capacity=2), Inspect(LINE)),
        ]
    ],
    [  # holds that end one by one
        crowd(3, capacity=2, ttl=3.0, priority=1, lock_delay=2.0),
        *([Renew(LINE, "w0", 30.0, "there")] for _ in range(2)),
        *([leave(lease)] for lease in ("w0", "w2", "w1", "w3")),
        [Inspect(LINE)],
    ],
    # more ends at once, or is free at once, than one command settles
    [crowd(80, waiter_ttl=5.0), 12.0, [wish("new", queue=False)], [wish("new", queue=False)]],
    [crowd(80), [wish("more", capacity=5000)], [Inspect(LINE)]],
    [crowd(150, waiter_ttl=5.0), 6.0, [beat(149)], *[[Inspect(LINE)]] * 3],
]

CROWDS: list[list[Any]] = [
    [crowd(400, waiter_ttl=5.0), 12.0, [Inspect(LINE)] * 9, [Inspect(LINE)]],
    [crowd(450, waiter_ttl=5.0), 6.0, [Inspect(LINE)] * 7, [wish("x")], [Inspect(LINE)] * 3],
    [
        [wish(f"w{n}", capacity=200, ttl=5.0, queue=False) for n in range(200)],
        [wish(f"x{n}", capacity=200, waiter_ttl=90.0) for n in range(200)],
        6.0,
        [beat(199), Inspect(LINE)],
        [Inspect(LINE)],
        [Inspect(LINE)] * 5,
    ],
    [  # places are counted in part only
        *(
            [wish(f"w{n}", waiter_ttl=1e5) for n in range(first, first + 200)]
            for first in range(0, 1200, 200)
        ),
        [beat(number) for number in (1, 999, 1000, 1001, 1002, 1199)],
        [leave("w1"), leave("w2"), *(beat(number) for number in (1001, 1002, 1003, 1004, 1199))],
        [wish("late", waiter_ttl=1e5), leave("w4"), *(beat(number) for number in (1003, 1004))],
    ],
]
"""More ends at once than one batch settles, so it matters which commands are a batch."""
