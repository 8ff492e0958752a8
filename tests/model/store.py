"""The store of a small world: the real ledger over the real book, one atomic call at a time."""

from typing import Any, NamedTuple

from dibs.core import ledger
from dibs.core.book import MemoryBook, stored_expiry
from dibs.model import (
    Acquire,
    Command,
    Gone,
    Granted,
    Lost,
    Notification,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
    Revoke,
    Revoked,
    Unknown,
)
from dibs.stores.cas.clock import Sightings, StoreClock
from tests.model.invariants import flaws_of_step, tokens_of_step
from tests.model.world import KEY, LONG_AGO, Call, FrozenBook, Message, Sights, freeze, thaw

NOW = StoreClock().time(0)
"""The present, for an observer that knows no dates (see `test_dates` for those that do)."""


class Outcome(NamedTuple):
    book: FrozenBook
    reply: tuple[Any, ...]
    pushes: tuple[Message, ...]
    tokens: tuple[int, ...]
    """Those that were granted."""
    flaw: str | None


class Store:
    """Applies calls, and remembers what came of them: the same book and call come up again and again.

    Without a clock, it is the caller itself that runs the ledger, with what *it* has seen.
    """

    def __init__(self, clock: bool, capacity: int, ttl: int, waiter_ttl: int) -> None:
        self.clock = clock
        self.capacity = capacity
        self.ttl = ttl
        self.waiter_ttl = waiter_ttl
        self._known: dict[tuple[FrozenBook, Call, int, int], Outcome] = {}

    def apply(self, book: FrozenBook, call: Call, by: int, stamp: int = 0) -> Outcome:
        at = (book, call, by, stamp)
        outcome = self._known.get(at)
        if outcome is None:
            outcome = self._known[at] = self._apply(book, call, by, stamp)
        return outcome

    def _apply(self, frozen: FrozenBook, call: Call, by: int, stamp: int) -> Outcome:
        eyes = Sightings()
        if not self.clock:
            eyes._seen = _remembered(eyes, frozen, frozen.sights[by])
        book = thaw(frozen, stored_expiry if self.clock else eyes.view(NOW))
        reply, notifications = ledger.apply(book, self.command(call, by), 0, stamp)
        sights = () if self.clock else _sights_after(frozen, book, eyes, by)
        pushes = tuple(
            _push(book, notification, 0 if self.clock else LONG_AGO)
            for notification in notifications
            if notification.event == "granted"
        )
        after = freeze(book, self.clock, sights)
        tokens = tokens_of_step(frozen, after)
        flaw = next(flaws_of_step(frozen, after, call), None) if self.clock else None
        return Outcome(after, plain(reply, 0 if self.clock else LONG_AGO), pushes, tokens, flaw)

    def command(self, call: Call, by: int) -> Command:
        match call:
            case ("acquire", id_, units, queue, priority):
                return Acquire(
                    KEY,
                    id_,
                    id_,
                    self.ttl,
                    units,
                    self.capacity,
                    queue,
                    self.waiter_ttl,
                    priority,
                    inbox=str(by),
                )
            case ("renew", id_):
                return Renew(KEY, id_, self.ttl)
            case ("release", id_, keep, tombstone):
                return Release(KEY, id_, keep, tombstone)
            case ("resize", id_, units, seq):
                return Resize(KEY, id_, units, seq)
            case ("revoke",):
                return Revoke(KEY, None, "because")
        raise AssertionError(call)


def plain(reply: Reply, ago: int = 0) -> tuple[Any, ...]:
    """A reply as a tuple; the store's time in it is `ago` ticks ago."""
    match reply:
        case Granted(token, slots, ttl):
            return ("granted", token, slots, ttl)
        case Renewed(ttl):
            return ("renewed", ttl)
        case Queued():
            return ("queued", ago)
        case Refused() | Gone() | Lost() | Released() | Unknown() | Revoked():
            return (type(reply).__name__.lower(),)
    raise AssertionError(reply)


def _push(book: MemoryBook, notification: Notification, ago: int) -> Message:
    """To whom it goes, and what a push says: the id stands for its fingerprint.

    It was granted `ago` ticks ago by the store's clock, if that has one.
    """
    hold = next(hold for hold in book.holds() if hold.token == notification.token)
    return (
        "p",
        int(notification.inbox),
        hold.id,
        notification.token,
        notification.slots,
        notification.claim_timeout,
        ago,
    )


# What an observer has seen counts only while the entry's mark (its beat, and what else tells one life
# of an id from another) is the same. Frozen entries have beat 0, so marks are taken from thawed ones.


def _remembered(eyes: Sightings, frozen: FrozenBook, sights: Sights) -> dict[str, Any]:
    fresh = Sightings()
    thaw(frozen, fresh.view(NOW))
    return {seen: (fresh._seen[seen][0], -ago) for seen, ago in sights}


def _sights_after(
    old: FrozenBook, book: MemoryBook, eyes: Sightings, by: int
) -> tuple[Sights, ...]:
    """The caller has seen what it wrote; others have seen only what is still as it was."""
    before = Sightings()
    thaw(old, before.view(NOW))
    now = Sightings()
    view = now.view(NOW)
    for entry in book.entries():
        view(entry)
        eyes.view(NOW)(entry)
    same = {
        entry.id
        for entry in book.entries()
        if entry.id in before._seen and before._seen[entry.id][0] == now._seen[entry.id][0]
    }
    own = tuple(sorted((e.id, -int(eyes._seen[e.id][1])) for e in book.entries()))
    return tuple(
        own if observer == by else tuple(sight for sight in sights if sight[0] in same)
        for observer, sights in enumerate(old.sights)
    )
