"""Whatever is asked of the ledger, in whatever order: what must hold in every state and at every step.

`tests/model` searches all states of small worlds, with clients and lost messages; here are more ids, all
commands, capacities that change, and many waiters.
"""

from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings

from dibs.core import ledger
from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry
from dibs.core.names import fingerprint
from dibs.core.timing import END_OF_TIME
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Granted,
    Queued,
    Refused,
    Release,
    Renewed,
    Resize,
    Revoke,
    Status,
)
from dibs.testing.clock import EPOCH
from tests.core.plans import DEAD_CROWDS, SHAPES, TTLS, Scene, drawn
from tests.model.invariants import flaws_of_step
from tests.model.world import Call, FrozenEntry, freeze, part
from tests.sampling import examples

KEY = b"semaphore:k"
LIMIT = 3
"""Of the queue."""


def call_of(command: Command) -> Call:
    if isinstance(command, Acquire):
        return ("acquire", command.id, command.units, command.queue, command.priority)
    return (type(command).__name__.lower(), getattr(command, "id", ""))


class Asked:
    """A book, and what is wrong with how it changed. The present is time 0, and entries come nearer."""

    def __init__(self, limit: int | None = None) -> None:
        self.book = MemoryBook(queue_limit=limit)
        self.stamp = EPOCH
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
        if isinstance(reply, Failed):
            assert freeze(book, clock=True) == before
            return
        assert len({(each.lease, each.event) for each in told}) == len(told), "nobody is told twice"
        assert own is None or fingerprint(own) not in {each.lease for each in told}
        assert next(flaws_of_step(before, freeze(book, clock=True), call_of(command)), "") == ""
        for entry in before.entries:
            if entry[0] == "hold" and part(entry, "expires") > 0:
                self.check_hold(entry, command)
        new = [entry.token for entry in book.holds() if entry.token > last]
        assert book.last >= max([last, *new])
        if not isinstance(command, Release | Revoke):  # by which a new grant may end at once
            assert book.last == max([last, *new]), "each token is given to somebody"
        if isinstance(reply, Granted) and own not in [
            part(entry, "id") for entry in before.entries
        ]:
            floor = getattr(command, "floor", 0)
            assert reply.token > max(floor, self.stamp - 1 if self.stamp <= END_OF_TIME else 0)
        if isinstance(command, Resize) and isinstance(reply, Refused):
            assert (reply.reason == "too_large") == (command.units > book.capacity)
        self.most = max(self.most, getattr(command, "capacity", 0))
        self.check_book()
        self.check_reply(reply, book.get(own or ""))

    def check_hold(self, old: FrozenEntry, command: Command) -> None:
        """Only its own commands end a hold before its expiry or change its units, and a revocation."""
        hold, is_own = self.book.get(part(old, "id")), getattr(command, "id", "") == part(old, "id")
        if not isinstance(hold, Hold) or hold.token < part(old, "token"):
            assert (isinstance(command, Release) and is_own) or isinstance(command, Revoke)
        elif hold.units != part(old, "units"):
            assert isinstance(command, Resize)
            assert is_own
            assert command.seq > part(old, "seq")

    def check_book(self) -> None:
        holds = list(self.book.holds())
        assert self.book.used == sum(hold.units for hold in holds) <= self.most
        slots = [slot for hold in holds for slot in hold.slots]
        assert len(slots) == len(set(slots))
        assert len({hold.token for hold in holds}) == len(holds)
        assert [self.book.ahead_of(place) for place in self.book.queue()] == list(
            range(self.book.waiting)
        )

    def check_reply(self, reply: Any, entry: Entry | None) -> None:
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
                others = [hold.expires for hold in book.holds() if hold is not entry]
                assert reply.recheck_in >= 0
                assert reply.recheck_in or min(others, default=0) <= 0
                assert {each.token for each in reply.holders} <= {
                    each.token for each in book.holds()
                }
            case Refused("too_large"):
                assert not isinstance(entry, QueueEntry)
            case Status():
                tokens = [each.token for each in reply.holders]
                assert tokens == sorted(each.token for each in book.holds())[: len(tokens)]
                counts = reply.used, reply.holding, reply.waiting, reply.last_token
                assert counts == (book.used, book.holding, book.waiting, book.last)


SCENE = Scene(KEY, "abcdef", [(1, 2), *[(1, 3)] * 4, (2, 3), *SHAPES[-6:]], "aaaahRRrrssvi!")


def test_nothing_goes_wrong_whatever_is_asked() -> None:
    for seed in range(examples(1000)):
        draw, asked = Random(seed), Asked(LIMIT)
        try:
            for _ in range(60):
                asked.ask(drawn(draw, SCENE))
                if draw.random() < 0.25:
                    asked.pass_time(draw.choice(TTLS))
                if draw.random() < 0.03:  # the wall clock is set
                    asked.stamp = draw.choice([0, -5, EPOCH, EPOCH * 100])
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(DEAD_CROWDS)
def test_a_queue_of_dead_waiters(plan: list[Any]) -> None:
    asked, (crowd, *steps) = Asked(), plan
    for command in crowd:
        ledger.apply(asked.book, command, 0.0, asked.stamp)
        asked.most = command.capacity
    for step in steps:
        if isinstance(step, float):
            asked.pass_time(step)
        else:
            for command in step:
                asked.ask(command)
