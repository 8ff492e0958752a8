"""Planted mistakes: each is a rule of the ledger or of the client with one thing wrong.

They replace functions from outside; nothing in the product knows of them. A mistake is named as the function
or class that makes it, with the world that shows it, and what the search must say.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from re import sub
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
from tests.model.size import Protocol, World
from tests.model.world import FOREVER, Client, Trip

type Planting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """A mistake, the world that shows it, and what the search must say."""

    name: str
    world: World
    shows: str
    plant: Planting = nullcontext


MUTANTS: list[Mutant] = []


def _named(mistake: Any) -> str:
    return sub("(?<!^)([A-Z])", r" \1", mistake.__name__).replace("_", " ").lower()


def client[C: type[Protocol]](world: World, **more: Any) -> Callable[[C], C]:
    """A client of that world makes this mistake, and two believe in a lease."""

    def plant(protocol: C) -> C:
        name = more.pop("name", _named(protocol))
        shows = more.pop("shows", "two believers")
        MUTANTS.append(Mutant(name, replace(world, protocol=protocol(), **more), shows))
        return protocol

    return plant


def in_ledger(target: Any, world: World, shows: str, **more: Any) -> Callable[[Any], Any]:
    """It takes the place of a command's rule, of a method of `Transition`, or of what `target` names."""

    def plant(mistake: Any) -> Any:
        def planting() -> AbstractContextManager[Any]:
            if isinstance(target, type):
                return patch.dict(ledger._RULES, {target: mistake})
            place, name = (Transition, target) if isinstance(target, str) else target
            return patch.multiple(place, **{name: mistake, **more})  # type: ignore[no-any-return]

        MUTANTS.append(Mutant(_named(mistake), world, shows, planting))
        return mistake

    return plant


# ---- clients that believe too much ----------------------------------------------------------------


@client(worlds.CONTENTION)
class DeadlineFromTheReply(Protocol):
    def left(self, ttl: float, sent: int) -> int:
        return int(ttl) - self.margin


@client(worlds.QUEUE_OF_ACQUIRES)
class DeadlineFromTheReceiptOfAPush(Protocol):
    def left_of_push(self, window: float, trip: Trip | None, granted: int) -> int | None:
        return int(window) - self.margin


@client(worlds.QUEUE_OF_RENEWS)
class NoAllowanceForAClockThatSlippedBeforeThePush(Protocol):
    def slip(self, waited: int) -> int:
        return 0


@client(worlds.QUEUE_OF_RENEWS, name="no margin for a skewed clock after a push")
@client(worlds.CONTENTION)
class NoMarginForASkewedClock(Protocol):
    margin = 0


@client(worlds.CONTENTION, shows="was given up, and holds again")
class DelayedAcquireAfterItsRelease(Protocol):
    def set_tombstone(self, client: Client) -> int:
        return 0


@client(worlds.CONTENTION)
class HolderThatBelievesUntilItsReleaseIsAnswered(Protocol):
    def gone(self, client: Client) -> Client:
        return client


@client(worlds.RESIZES)
class HolderThatCountsOnUnitsItGaveUp(Protocol):
    def shrunk(self, client: Client) -> Client:
        return client


# -- in a store without a clock


@client(worlds.CLOCKLESS_WAITER, tombstone=FOREVER)
class PushThatIsBelievedThoughAnAnswerWasLost(Protocol):
    def doubted(self, client: Client) -> Client:
        return client


@client(worlds.CLOCKLESS_WAITER)
class PushThatIsBelievedFromItsArrival(Protocol):
    def left_of_push(self, window: float, trip: Trip | None, granted: int) -> int | None:
        return None if trip is None else int(window) - self.margin


@client(worlds.CLOCKLESS_WAITER, ids=(1, 2))
class PushThatIsBelievedAfterALongSilence(Protocol):
    def was_silent(self, client: Client, tombstone: int) -> bool:
        return False


# ---- ledgers that forget a rule -------------------------------------------------------------------


@in_ledger(Release, worlds.CONTENTION, "two believers")
def a_release_that_ignores_the_id(transition: Transition, command: Release) -> Reply:
    reply = ledger._release(transition, command)
    if isinstance(reply, Unknown):
        for hold in list(transition.book.holds()):
            transition.book.remove(hold)
    return reply


@in_ledger(Renew, worlds.CONTENTION, "granted without being asked for")
def a_renewal_that_grants_an_expired_lease_again(change: Transition, command: Renew) -> Reply:
    if change.book.get(command.id) is not None or not change.fits(1):
        return ledger._renew(change, command)
    expires = change.now + command.ttl
    change.book.put(Hold(command.id, "", change.take_token(0), 1, (0,), command.ttl, expires))
    return Renewed(command.ttl)


@in_ledger("_expire", worlds.CONTENTION, "outlives its expiry")
def a_lease_that_lives_until_somebody_else_wants_it(transition: Transition, entry: Any) -> None:
    if not isinstance(entry, Hold):
        transition.book.remove(entry)


_acquire_again = ledger._acquire_again


@in_ledger((ledger, "_acquire_again"), worlds.QUEUE_OF_ACQUIRES, "two believers")
def a_repeated_acquire_that_renews_nothing(
    transition: Transition, command: Acquire, entry: Any
) -> Reply:
    if isinstance(entry, Hold) and entry.state in ("held", "unclaimed"):
        entry.state = "held"
        transition.book.put(entry)
        return Granted(entry.token, entry.slots, command.ttl)
    return _acquire_again(transition, command, entry)


@in_ledger(Resize, worlds.RESIZES, "two believers")
def a_delayed_resize(transition: Transition, command: Resize) -> Reply:
    hold = transition.book.get(command.id)
    if isinstance(hold, Hold):
        return ledger._resize(transition, replace(command, seq=hold.seq + 1))
    return ledger._resize(transition, command)


@in_ledger("fits", worlds.LARGE_HEAD, "overtook")
def a_newcomer_that_passes_the_queue(change: Transition, units: int, *, queue: bool = True) -> bool:
    return change.book.used + units <= change.book.capacity


@in_ledger("_grant_next", worlds.LARGE_HEAD, "overtook")
def a_queue_that_grants_whatever_fits(transition: Transition) -> bool:
    for place in transition.book.queue():
        if transition.book.used + place.units <= transition.book.capacity:
            transition._grant_waiter(place)
            return True
    return False


@in_ledger("_is_passed_over", worlds.DEAD_WAITERS, "overtook")
def a_place_that_is_passed_over_though_it_speaks(change: Transition, place: QueueEntry) -> bool:
    return change.book.ahead_of(place) == 0


@in_ledger((transition, "next_token"), worlds.CONTENTION, "was granted after")
def a_token_that_repeats(last: int, stamp: int, floor: int) -> int:
    return max(last, 1)


@in_ledger((transition, "next_token"), worlds.WIPE, "was granted after")
def a_token_that_falls(last: int, stamp: int, floor: int) -> int:
    return last + 1


_expire = Transition._expire


@in_ledger("_expire", worlds.DEAD_WAITERS, "outlives its expiry")
def a_pushed_grant_without_a_claim_window(transition: Transition, entry: Any) -> None:
    if not (isinstance(entry, Hold) and entry.state == "unclaimed"):
        _expire(transition, entry)


def _expire_no_place(transition: Transition, entry: Any) -> None:
    if not isinstance(entry, QueueEntry):
        _expire(transition, entry)


@in_ledger("_grant_next", worlds.DEAD_WAITERS, "waits for ever", _expire=_expire_no_place)
def a_queue_that_waits_for_its_dead_head(transition: Transition) -> bool:
    head = transition.book.first()
    if head is None or head.expires - transition.now < head.ttl or transition._is_full(head.units):
        return False
    transition._grant_waiter(head)
    return True


@in_ledger(Release, worlds.KEPT, "was retained, and is prolonged")
def a_repeated_release_that_extends_what_it_retains(
    transition: Transition, command: Release
) -> Reply:
    hold = transition.book.get(command.id)
    if isinstance(hold, Hold) and hold.state == "retained":
        transition.retain(hold, command.retain, command.tombstone)
        return Released()
    return ledger._release(transition, command)


@in_ledger(Renew, worlds.REVOCATION, "was revoked, and is prolonged")
def a_revoked_lease_that_is_renewed(transition: Transition, command: Renew) -> Reply:
    hold = transition.book.get(command.id)
    if isinstance(hold, Hold) and hold.state == "revoked":
        return Renewed(transition.extend(hold, command.ttl))
    return ledger._renew(transition, command)


@in_ledger((clock, "mark_of"), worlds.CLOCKLESS_QUEUE, "")
def a_sight_that_outlives_what_was_seen(entry: Any) -> Any:
    return type(entry), 0, entry.beat


LAST_FIRST = property(lambda place: (-place.priority, -place.arrival))

MUTANTS += [
    Mutant(
        "a queue that grants the last first",
        worlds.DEAD_WAITERS,
        "overtook",
        lambda: patch.object(QueueEntry, "rank", LAST_FIRST),
    ),
    Mutant(
        "no allowance for an observer's clock",
        worlds.CLOCKLESS,
        "two believers",
        lambda: patch.object(clock, "DRIFT", 0.0),
    ),
    Mutant(
        "a store that loses its book and promises exclusion",
        replace(worlds.WIPE, exclusive=True, grants=FOREVER),
        "two believers",
    ),
]
