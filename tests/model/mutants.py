"""Planted mistakes: each is a rule of the ledger or of the client with one thing wrong.

They replace functions from outside; nothing in the product knows of them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from dibs.core import ledger, transition
from dibs.core.book import Hold, QueueEntry
from dibs.core.transition import Transition
from dibs.model import (
    Acquire,
    Granted,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
    Unknown,
)
from dibs.stores.cas import clock
from tests.model import worlds
from tests.model.protocol import Protocol
from tests.model.size import World
from tests.model.world import FOREVER, Client, Trip

type Planting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """A mistake, the world that shows it, and what the search must say."""

    name: str
    world: World
    caught_as: str
    plant: Planting = nullcontext


def _rule(command: type, rule: Callable[[Transition, Any], Reply]) -> Planting:
    return lambda: patch.dict(ledger._RULES, {command: rule})


def _method(name: str, method: Callable[..., Any]) -> Planting:
    return lambda: patch.object(Transition, name, method)


# ---- clients that believe too much ----------------------------------------------------------------


class CountsFromTheReply(Protocol):
    def left(self, ttl: float, sent: int) -> int:
        return int(ttl) - self.margin


class CountsFromThePush(Protocol):
    def left_of_push(self, window: float, trip: Trip | None, granted: int) -> int | None:
        return int(window) - self.margin


class BelievesThePushAnyway(Protocol):
    def doubted(self, client: Client) -> Client:
        return client


class CountsFromTheArrival(Protocol):
    def left_of_push(self, window: float, trip: Trip | None, granted: int) -> int | None:
        return None if trip is None else int(window) - self.margin


class IsNeverSilent(Protocol):
    def was_silent(self, client: Client, tombstone: int) -> bool:
        return False


class NoAllowanceForTheWait(Protocol):
    def slip(self, waited: int) -> int:
        return 0


class NoMargin(Protocol):
    margin = 0


class NeverBuries(Protocol):
    def set_tombstone(self, client: Client) -> int:
        return 0


class BelievesUntilItsReleaseIsAnswered(Protocol):
    def gone(self, client: Client) -> Client:
        return client


class BelievesInUnitsItGaveUp(Protocol):
    def shrunk(self, client: Client) -> Client:
        return client


# ---- ledgers that forget a rule -------------------------------------------------------------------


def _release_of_anybody(transition: Transition, command: Release) -> Reply:
    reply = ledger._release(transition, command)
    if isinstance(reply, Unknown):
        for hold in list(transition.book.holds()):
            transition.book.remove(hold)
    return reply


def _renew_of_the_expired(transition: Transition, command: Renew) -> Reply:
    if transition.book.get(command.id) is not None or not transition.fits(1):
        return ledger._renew(transition, command)
    hold = Hold(
        command.id, "", transition.take_token(0), 1, (0,), command.ttl, transition.now + command.ttl
    )
    transition.book.put(hold)
    return Renewed(command.ttl)


def _renew_of_the_revoked(transition: Transition, command: Renew) -> Reply:
    hold = transition.book.get(command.id)
    if isinstance(hold, Hold) and hold.state == "revoked":
        return Renewed(transition.extend(hold, command.ttl))
    return ledger._renew(transition, command)


def _expired_until_somebody_wants_it(transition: Transition, entry: Any) -> None:
    if not isinstance(entry, Hold):
        transition.book.remove(entry)


def _acquire_that_does_not_renew(transition: Transition, command: Acquire, entry: Any) -> Reply:
    if isinstance(entry, Hold) and entry.state in ("held", "unclaimed"):
        entry.state = "held"
        transition.book.put(entry)
        return Granted(entry.token, entry.slots, command.ttl)
    return _ACQUIRE_AGAIN(transition, command, entry)


_ACQUIRE_AGAIN = ledger._acquire_again


def _resize_in_any_order(transition: Transition, command: Resize) -> Reply:
    hold = transition.book.get(command.id)
    if isinstance(hold, Hold):
        return ledger._resize(transition, replace(command, seq=hold.seq + 1))
    return ledger._resize(transition, command)


def _release_that_keeps_again(transition: Transition, command: Release) -> Reply:
    hold = transition.book.get(command.id)
    if isinstance(hold, Hold) and hold.state == "retained":
        transition.retain(hold, command.retain, command.tombstone)
        return Released()
    return ledger._release(transition, command)


def _fits_whoever_waits(transition: Transition, units: int, *, queue: bool = True) -> bool:
    return transition.book.used + units <= transition.book.capacity


def _grant_whatever_fits(transition: Transition) -> bool:
    for place in transition.book.queue():
        if transition.book.used + place.units <= transition.book.capacity:
            transition._grant_waiter(place)
            return True
    return False


_END = Transition._expire


def _unclaimed_for_ever(transition: Transition, entry: Any) -> None:
    if not (isinstance(entry, Hold) and entry.state == "unclaimed"):
        _END(transition, entry)


def _places_for_ever(transition: Transition, entry: Any) -> None:
    if not isinstance(entry, QueueEntry):
        _END(transition, entry)


def _grant_only_who_speaks(transition: Transition) -> bool:
    """The head waits for its own voice, and a dead one for ever."""
    head = next(iter(transition.book.queue()), None)
    if (
        head is None
        or head.expires - transition.now < head.ttl
        or not _fits_whoever_waits(transition, head.units)
    ):
        return False
    transition._grant_waiter(head)
    return True


MUTANTS = [
    Mutant(
        "a release that doesn't look at the id",
        worlds.CONTENTION,
        "two believers",
        _rule(Release, _release_of_anybody),
    ),
    Mutant(
        "a deadline from the reply",
        replace(worlds.CONTENTION, protocol=CountsFromTheReply()),
        "two believers",
    ),
    Mutant(
        "a deadline from the push's receipt",
        replace(worlds.QUEUE_OF_ACQUIRES, protocol=CountsFromThePush()),
        "two believers",
    ),
    Mutant(
        "no allowance for a clock that slipped before the push",
        replace(worlds.QUEUE_OF_RENEWS, protocol=NoAllowanceForTheWait()),
        "two believers",
    ),
    Mutant(
        "no margin for a skewed clock",
        replace(worlds.CONTENTION, protocol=NoMargin()),
        "two believers",
    ),
    Mutant(
        "no margin for a skewed clock after a push",
        replace(worlds.QUEUE_OF_RENEWS, protocol=NoMargin()),
        "two believers",
    ),
    Mutant(
        "a renewal that grants an expired lease again",
        worlds.CONTENTION,
        "granted without being asked for",
        _rule(Renew, _renew_of_the_expired),
    ),
    Mutant(
        "a lease that lives until somebody else wants it",
        worlds.CONTENTION,
        "outlives its expiry",
        _method("_expire", _expired_until_somebody_wants_it),
    ),
    Mutant(
        "a repeated Acquire that doesn't renew",
        worlds.QUEUE_OF_ACQUIRES,
        "two believers",
        lambda: patch.object(ledger, "_acquire_again", _acquire_that_does_not_renew),
    ),
    Mutant(
        "a delayed Acquire after its Release",
        replace(worlds.CONTENTION, protocol=NeverBuries()),
        "was given up, and holds again",
    ),
    Mutant(
        "a delayed Resize",
        worlds.RESIZES,
        "two believers",
        _rule(Resize, _resize_in_any_order),
    ),
    Mutant(
        "a newcomer that passes the queue",
        worlds.LARGE_HEAD,
        "overtook",
        _method("fits", _fits_whoever_waits),
    ),
    Mutant(
        "a queue that grants whatever fits",
        worlds.LARGE_HEAD,
        "overtook",
        _method("_grant_next", _grant_whatever_fits),
    ),
    Mutant(
        "a queue that grants the last first",
        worlds.DEAD_WAITERS,
        "overtook",
        lambda: patch.object(QueueEntry, "rank", property(lambda p: (-p.priority, -p.arrival))),
    ),
    Mutant(
        "a place that is passed over though it speaks",
        worlds.DEAD_WAITERS,
        "overtook",
        _method("_is_passed_over", lambda transition, place: transition.book.ahead_of(place) == 0),
    ),
    Mutant(
        "a token that repeats",
        worlds.CONTENTION,
        "was granted after",
        lambda: patch.object(transition, "next_token", lambda last, stamp, floor: max(last, 1)),
    ),
    Mutant(
        "a token that falls",
        worlds.WIPE,
        "was granted after",
        lambda: patch.object(transition, "next_token", lambda last, stamp, floor: last + 1),
    ),
    Mutant(
        "a pushed grant without a claim window",
        worlds.DEAD_WAITERS,
        "outlives its expiry",
        _method("_expire", _unclaimed_for_ever),
    ),
    Mutant(
        "a queue that waits for its dead head",
        worlds.DEAD_WAITERS,
        "waits for ever",
        lambda: patch.multiple(
            Transition, _expire=_places_for_ever, _grant_next=_grant_only_who_speaks
        ),
    ),
    Mutant(
        "a repeated release that extends what it retains",
        worlds.KEPT,
        "was retained, and is prolonged",
        _rule(Release, _release_that_keeps_again),
    ),
    Mutant(
        "a revoked lease that is renewed",
        worlds.REVOCATION,
        "was revoked, and is prolonged",
        _rule(Renew, _renew_of_the_revoked),
    ),
    Mutant(
        "no allowance for an observer's clock",
        worlds.CLOCKLESS,
        "two believers",
        lambda: patch.object(clock, "DRIFT", 0.0),
    ),
    Mutant(
        "a sight that outlives what was seen",
        worlds.CLOCKLESS_QUEUE,
        "",
        lambda: patch.object(clock, "mark_of", lambda entry: (type(entry), 0, entry.beat)),
    ),
    Mutant(
        "a push that is believed though an answer was lost, in a store without a clock",
        replace(worlds.CLOCKLESS_WAITER, protocol=BelievesThePushAnyway(), tombstone=FOREVER),
        "two believers",
    ),
    Mutant(
        "a push that is believed from its arrival, in a store without a clock",
        replace(worlds.CLOCKLESS_WAITER, protocol=CountsFromTheArrival()),
        "two believers",
    ),
    Mutant(
        "a push that is believed after a long silence, in a store without a clock",
        replace(worlds.CLOCKLESS_WAITER, protocol=IsNeverSilent(), ids=(1, 2)),
        "two believers",
    ),
    Mutant(
        "a holder that believes until its Release is answered",
        replace(worlds.CONTENTION, protocol=BelievesUntilItsReleaseIsAnswered()),
        "two believers",
    ),
    Mutant(
        "a holder that counts on units it gave up",
        replace(worlds.RESIZES, protocol=BelievesInUnitsItGaveUp()),
        "two believers",
    ),
    Mutant(
        "a store that loses its book and promises exclusion",
        replace(worlds.WIPE, exclusive=True, grants=FOREVER),
        "two believers",
    ),
]
