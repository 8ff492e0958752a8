"""Planted mistakes: each is a rule of the ledger or of the client with one thing wrong.

They replace functions from outside; nothing in the product knows of them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from dibs.core import ledger, turn
from dibs.core.book import Hold, Place
from dibs.core.turn import Turn
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
from tests.core import sightings
from tests.model import worlds
from tests.model.protocol import Protocol
from tests.model.size import World
from tests.model.world import FOREVER, Client

type Planting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """A mistake, the world that shows it, and what the search must say."""

    name: str
    world: World
    caught_as: str
    plant: Planting = nullcontext


def _rule(command: type, rule: Callable[[Turn, Any], Reply]) -> Planting:
    return lambda: patch.dict(ledger._RULES, {command: rule})


def _method(name: str, method: Callable[..., Any]) -> Planting:
    return lambda: patch.object(Turn, name, method)


# ---- clients that believe too much ----------------------------------------------------------------


class CountsFromTheReply(Protocol):
    def left(self, ttl: float, sent: int) -> int:
        return int(ttl) - self.margin


class CountsFromThePush(Protocol):
    def left_of_push(self, window: float, trip: tuple[int, int] | None, granted: int) -> int | None:
        return int(window) - self.margin


class NoAllowanceForTheWait(Protocol):
    def slip(self, waited: int) -> int:
        return 0


class NoMargin(Protocol):
    margin = 0


class NeverBuries(Protocol):
    def bury(self, client: Client) -> int:
        return 0


class BelievesUntilItsReleaseIsAnswered(Protocol):
    def gone(self, client: Client) -> Client:
        return client


class BelievesInUnitsItGaveUp(Protocol):
    def shrunk(self, client: Client) -> Client:
        return client


# ---- ledgers that forget a rule -------------------------------------------------------------------


def _release_of_anybody(turn: Turn, command: Release) -> Reply:
    reply = ledger._release(turn, command)
    if isinstance(reply, Unknown):
        for hold in list(turn.book.holds()):
            turn.book.remove(hold)
    return reply


def _renew_of_the_expired(turn: Turn, command: Renew) -> Reply:
    if turn.book.get(command.id) is not None or not turn.fits(1):
        return ledger._renew(turn, command)
    hold = Hold(command.id, "", turn.take_token(0), 1, (0,), command.ttl, turn.now + command.ttl)
    turn.book.put(hold)
    return Renewed(command.ttl)


def _renew_of_the_revoked(turn: Turn, command: Renew) -> Reply:
    hold = turn.book.get(command.id)
    if isinstance(hold, Hold) and hold.state == "revoked":
        return Renewed(turn.extend(hold, command.ttl))
    return ledger._renew(turn, command)


def _expired_until_somebody_wants_it(turn: Turn, entry: Any) -> None:
    if not isinstance(entry, Hold):
        turn.book.remove(entry)


def _acquire_that_does_not_renew(turn: Turn, command: Acquire, entry: Any) -> Reply:
    if isinstance(entry, Hold) and entry.state in ("held", "unclaimed"):
        entry.state = "held"
        turn.book.put(entry)
        return Granted(entry.token, entry.slots, command.ttl)
    return _ACQUIRE_AGAIN(turn, command, entry)


_ACQUIRE_AGAIN = ledger._acquire_again


def _resize_in_any_order(turn: Turn, command: Resize) -> Reply:
    hold = turn.book.get(command.id)
    if isinstance(hold, Hold):
        return ledger._resize(turn, replace(command, seq=hold.seq + 1))
    return ledger._resize(turn, command)


def _release_that_keeps_again(turn: Turn, command: Release) -> Reply:
    hold = turn.book.get(command.id)
    if isinstance(hold, Hold) and hold.state == "kept":
        turn.keep(hold, command.keep, command.bury)
        return Released()
    return ledger._release(turn, command)


def _fits_whoever_waits(turn: Turn, units: int, *, queue: bool = True) -> bool:
    return turn.book.used + units <= turn.book.capacity


def _grant_whatever_fits(turn: Turn) -> bool:
    for place in turn.book.queue():
        if turn.book.used + place.units <= turn.book.capacity:
            turn._grant_waiter(place)
            return True
    return False


_END = Turn._expire


def _unclaimed_for_ever(turn: Turn, entry: Any) -> None:
    if not (isinstance(entry, Hold) and entry.state == "unclaimed"):
        _END(turn, entry)


def _places_for_ever(turn: Turn, entry: Any) -> None:
    if not isinstance(entry, Place):
        _END(turn, entry)


def _grant_only_who_speaks(turn: Turn) -> bool:
    """The head waits for its own voice, and a dead one for ever."""
    head = next(iter(turn.book.queue()), None)
    if (
        head is None
        or head.expires - turn.now < head.ttl
        or not _fits_whoever_waits(turn, head.units)
    ):
        return False
    turn._grant_waiter(head)
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
        lambda: patch.object(Place, "rank", property(lambda p: (-p.priority, -p.arrival))),
    ),
    Mutant(
        "a place that is passed over though it speaks",
        worlds.DEAD_WAITERS,
        "overtook",
        _method("_is_passed_over", lambda turn, place: turn.book.ahead_of(place) == 0),
    ),
    Mutant(
        "a token that repeats",
        worlds.CONTENTION,
        "was granted after",
        lambda: patch.object(turn, "next_token", lambda last, stamp, floor: max(last, 1)),
    ),
    Mutant(
        "a token that falls",
        worlds.WIPE,
        "was granted after",
        lambda: patch.object(turn, "next_token", lambda last, stamp, floor: last + 1),
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
        lambda: patch.multiple(Turn, _expire=_places_for_ever, _grant_next=_grant_only_who_speaks),
    ),
    Mutant(
        "a repeated keep that extends",
        worlds.KEPT,
        "was kept, and is prolonged",
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
        lambda: patch.object(sightings, "DRIFT", 0.0),
    ),
    Mutant(
        "a sight that outlives what was seen",
        worlds.CLOCKLESS_QUEUE,
        "",
        lambda: patch.object(sightings, "_mark", lambda entry: (type(entry), 0, entry.beat)),
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
