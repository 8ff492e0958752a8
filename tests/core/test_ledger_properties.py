"""Whatever is asked of the ledger, in whatever order, it answers as the naive reference does."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dibs.core import ledger
from dibs.core.book import Entry, MemoryBook, stored_expiry
from dibs.core.names import fingerprint
from dibs.core.timing import DRIFT
from dibs.model import (
    MANY,
    MAX_SLOTS,
    Acquire,
    Command,
    Inspect,
    Refused,
    Release,
    Renew,
    Resize,
    Revoke,
)
from dibs.stores.cas.clock import Sightings, StoreClock
from dibs.testing.conformance.vectors import close
from tests.core.naive import Naive
from tests.sampling import examples
from tests.stores.told_plans import DEAD_CROWDS, TOLD

KEY = b"semaphore:k"
STAMP = 1_700_000_000_000_000

LIMIT = 3
"""Of the queue."""

ids = st.sampled_from("abcdef")
# Few values, so that things happen at the same time; all of them exact in binary.
durations = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0])
delays = st.sampled_from([0.0, 0.0, 0.5, 3.0, 64.0])


def compare(book: MemoryBook, reference: Naive, command: Command, now: float, stamp: int) -> None:
    """Apply a command to both: they give the same reply and the same notifications."""
    reply, notifications = ledger.apply(book, command, now, stamp)
    expected, pushed = reference.do(command, now, stamp)
    if isinstance(reply, Refused):
        reply = replace(reply, holders=())  # in any order, and looked at elsewhere
    assert close(reply, expected), (command, reply, expected)
    told = [(notification.lease, notification.event) for notification in notifications]
    assert set(told) == pushed, command
    assert len(told) == len(pushed), "nobody is woken twice"


class LedgerAgainstTheReference(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 128.0
        self.stamp = STAMP
        self.book = MemoryBook(queue_limit=LIMIT, view=self.view)
        self.reference = Naive(LIMIT)
        self.tops = [0]

    def view(self, entry: Entry) -> float:
        return stored_expiry(entry)

    def ask(self, command: Command) -> None:
        before = self.book.last
        compare(self.book, self.reference, command, self.now, self.stamp)
        assert self.book.last >= before, "tokens never fall"

    @rule(
        id_=ids,
        ttl=durations,
        units=st.sampled_from([1, 1, 1, 2, 3, MANY]),
        capacity=st.sampled_from([1, 2, 3, 3, MAX_SLOTS + 1, MANY]),
        queue=st.booleans(),
        waiter_ttl=durations,
        priority=st.sampled_from([0, 0, 1]),
        floor=st.sampled_from([0, 0, STAMP + 10_000_000]),
        lock_delay=delays,
    )
    def acquire(self, id_: str, **wishes: Any) -> None:
        self.ask(Acquire(KEY, id_, f"owner of {id_}", inbox=f"inbox of {id_}", **wishes))

    @rule(id_=ids, ttl=durations)
    def renew(self, id_: str, ttl: float) -> None:
        self.ask(Renew(KEY, id_, ttl))

    @rule(id_=ids, retain=delays, tombstone=delays)
    def release(self, id_: str, retain: float, tombstone: float) -> None:
        self.ask(Release(KEY, id_, retain, tombstone))

    @rule(id_=ids, units=st.integers(1, 4), seq=st.integers(1, 5))
    def resize(self, id_: str, units: int, seq: int) -> None:
        self.ask(Resize(KEY, id_, units, seq))

    @rule(lease=st.none() | ids.map(fingerprint), now=st.booleans())
    def revoke(self, lease: str | None, now: bool) -> None:
        self.ask(Revoke(KEY, lease, "because", now))

    @rule()
    def inspect(self) -> None:
        self.ask(Inspect(KEY))

    @rule(seconds=durations)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.stamp += int(seconds * 1e6)

    @rule(stamp=st.sampled_from([0, -5, STAMP, STAMP * 100]))
    def the_wall_clock_is_set(self, stamp: int) -> None:
        self.stamp = stamp

    @invariant()
    def the_book_adds_up(self) -> None:
        holds = list(self.book.holds())
        assert self.book.used == sum(hold.units for hold in holds)
        slots = [slot for hold in holds for slot in hold.slots]
        assert len(slots) == len(set(slots))
        assert len({hold.token for hold in holds}) == len(holds)
        assert self.book.waiting == len(list(self.book.queue()))
        assert [self.book.ahead_of(p) for p in self.book.queue()] == list(range(self.book.waiting))


class LedgerWithoutAClock(LedgerAgainstTheReference):
    """The one observer makes every call, and has seen every entry since it wrote it."""

    def __init__(self) -> None:
        super().__init__()
        self.reference.slack = DRIFT
        self.sightings = Sightings()

    def view(self, entry: Entry) -> float:
        if not hasattr(self, "sightings"):
            self.sightings = Sightings()
        return self.sightings.view(StoreClock().time(self.now))(entry)

    def ask(self, command: Command) -> None:
        super().ask(command)
        self.sightings.forget_all_but(self.book.entries())  # as every backend does


TestWithAClock = LedgerAgainstTheReference.TestCase
TestWithoutAClock = LedgerWithoutAClock.TestCase
TestWithAClock.settings = TestWithoutAClock.settings = settings(
    max_examples=examples(200),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


# ---- long queues, in which most waiters are dead ------------------------------------------------------


def replay(plan: list[Any]) -> None:
    """Each key of a plan has a book and a reference of its own."""
    books: defaultdict[bytes, MemoryBook] = defaultdict(MemoryBook)
    references: defaultdict[bytes, Naive] = defaultdict(Naive)
    now, stamp = 128.0, STAMP
    for step in plan:
        if isinstance(step, list):
            for command in step:
                compare(books[command.key], references[command.key], command, now, stamp)
        elif step > 0:
            now, stamp = now + step, stamp + int(step * 1e6)
        else:
            stamp += int(step * 1e6)


def has_more_holders_than_are_listed(plan: list[Any]) -> bool:
    """Then the naive ledger lists them all."""
    return any(
        isinstance(step, list) and len(step) > ledger.HOLDERS_SHOWN and not step[0].queue
        for step in plan
    )


def test_a_plan_of_the_vectors_is_answered_by_both_alike() -> None:
    for plan in TOLD:
        if not has_more_holders_than_are_listed(plan):
            replay(plan)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(DEAD_CROWDS)
def test_a_queue_of_dead_waiters_is_served_by_both_alike(plan: list[Any]) -> None:
    replay(plan)
