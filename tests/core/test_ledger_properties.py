"""Whatever is asked of the ledger, in whatever order: what must hold in every state and at every step.

`tests/model` searches all states of small worlds, with clients and lost messages; here are more ids, all
commands, capacities that change, and many waiters.
"""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dibs.core import ledger
from dibs.core.book import Entry, Hold, MemoryBook
from dibs.core.names import fingerprint
from dibs.model import (
    MANY,
    MAX_SLOTS,
    Acquire,
    Command,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Renew,
    Renewed,
    Resize,
    Revoke,
    Status,
)
from tests.model.invariants import flaws_of_step
from tests.model.world import Call, freeze
from tests.sampling import examples
from tests.stores.told_plans import DEAD_CROWDS

KEY = b"semaphore:k"
STAMP = 1_700_000_000_000_000
LIMIT = 3
"""Of the queue."""

ids = st.sampled_from("abcdef")
# Few values, so that things happen at the same time; all of them exact in binary.
durations = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0])
delays = st.sampled_from([0.0, 0.0, 0.5, 3.0, 64.0])


def call_of(command: Command) -> Call:
    """The command as `flaws_of_step` reads it."""
    if isinstance(command, Acquire):
        return ("acquire", command.id, command.units, command.queue, command.priority)
    return (type(command).__name__.lower(), getattr(command, "id", ""))


class Asked:
    """A book, and what is wrong with how it changed. The present is time 0, and entries come nearer."""

    def __init__(self, limit: int | None = None) -> None:
        self.book = MemoryBook(queue_limit=limit)
        self.stamp = STAMP
        self.most = 0
        """The greatest capacity that was declared."""

    def pass_time(self, seconds: float) -> None:
        self.stamp += int(seconds * 1e6)
        for entry in self.book.entries():
            entry.expires -= seconds
        self.book.rebuild()

    def ask(self, command: Command) -> None:
        book, own = self.book, getattr(command, "id", None)
        last, before = book.last, freeze(book, clock=True)
        reply, told = ledger.apply(book, command, 0.0, self.stamp)
        new = [entry.token for entry in book.holds() if entry.token > last]
        assert len({(each.lease, each.event) for each in told}) == len(told), "nobody is told twice"
        assert own is None or fingerprint(own) not in {each.lease for each in told}
        assert book.last == max([last, *new]), "each token is given to somebody, and they rise"
        self.most = max(self.most, getattr(command, "capacity", 0))
        assert book.used <= self.most
        assert next(flaws_of_step(before, freeze(book, clock=True), call_of(command)), "") == ""
        self.compare(reply, book.get(own or ""))

    def compare(self, reply: Any, entry: Entry | None) -> None:
        """What is answered is what is in the book."""
        book = self.book
        match reply:
            case Granted(token, slots, ttl):
                assert isinstance(entry, Hold)
                assert (token, slots, ttl, "held") == (
                    entry.token,
                    entry.slots,
                    entry.ttl,
                    entry.state,
                )
            case Renewed(ttl):
                assert isinstance(entry, Hold)
                assert ttl == entry.ttl == entry.expires
            case Queued(ahead, recheck):
                assert ahead == [each.id for each in book.queue()].index(entry.id)  # type: ignore[union-attr]
                assert recheck >= 0
            case Refused("held" | "queue_full" | "closed"):
                assert reply.recheck_in >= 0
                assert {each.token for each in reply.holders} <= {
                    each.token for each in book.holds()
                }
            case Status():
                tokens = [each.token for each in reply.holders]
                assert tokens == sorted(each.token for each in book.holds())[: len(tokens)]
                counts = reply.used, reply.holding, reply.waiting, reply.last_token
                assert counts == (book.used, book.holding, book.waiting, book.last)


class Ledger(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.asked = Asked(LIMIT)

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
        self.asked.ask(Acquire(KEY, id_, f"owner of {id_}", inbox=f"inbox of {id_}", **wishes))

    @rule(id_=ids, ttl=durations)
    def renew(self, id_: str, ttl: float) -> None:
        self.asked.ask(Renew(KEY, id_, ttl))

    @rule(id_=ids, retain=delays, tombstone=delays)
    def release(self, id_: str, retain: float, tombstone: float) -> None:
        self.asked.ask(Release(KEY, id_, retain, tombstone))

    @rule(id_=ids, units=st.integers(1, 4), seq=st.integers(1, 5))
    def resize(self, id_: str, units: int, seq: int) -> None:
        self.asked.ask(Resize(KEY, id_, units, seq))

    @rule(lease=st.none() | ids.map(fingerprint), now=st.booleans())
    def revoke(self, lease: str | None, now: bool) -> None:
        self.asked.ask(Revoke(KEY, lease, "because", now))

    @rule()
    def inspect(self) -> None:
        self.asked.ask(Inspect(KEY))

    @rule(seconds=durations)
    def time_passes(self, seconds: float) -> None:
        self.asked.pass_time(seconds)

    @rule(stamp=st.sampled_from([0, -5, STAMP, STAMP * 100]))
    def the_wall_clock_is_set(self, stamp: int) -> None:
        self.asked.stamp = stamp

    @invariant()
    def the_book_adds_up(self) -> None:
        book = self.asked.book
        holds = list(book.holds())
        assert book.used == sum(hold.units for hold in holds)
        slots = [slot for hold in holds for slot in hold.slots]
        assert len(slots) == len(set(slots))
        assert len({hold.token for hold in holds}) == len(holds)
        assert [book.ahead_of(place) for place in book.queue()] == list(range(book.waiting))


TestLedger = Ledger.TestCase
TestLedger.settings = settings(
    max_examples=examples(1000),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(DEAD_CROWDS)
def test_a_queue_of_dead_waiters(plan: list[Any]) -> None:
    asked = Asked()
    for step in plan:
        if isinstance(step, list):
            for command in step:
                asked.ask(command)
        elif step > 0:
            asked.pass_time(step)
