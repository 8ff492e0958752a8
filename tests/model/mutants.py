"""Planted mistakes: each is a rule of the ledger or of the client with one thing wrong.

They replace functions from outside; nothing in the product knows of them. A mistake in the ledger that is a
function is named as it is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from dibs.core import ledger, transition
from dibs.core.book import Hold, QueueEntry
from dibs.core.transition import Transition
from dibs.model import Acquire, Granted, Release, Released, Renew, Renewed, Reply, Resize, Unknown
from dibs.stores.cas import clock
from tests.model import worlds
from tests.model.size import Protocol, World
from tests.model.world import FOREVER

type Planting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """A mistake, the world that shows it, and what the search must say."""

    name: str
    world: World
    shows: str
    plant: Planting = nullcontext


def of_client(name: str, world: World, shows: str = "two believers", **mistake: Any) -> Mutant:
    """A client of that world has another arithmetic: methods and fields of `Protocol`."""
    protocol = type("Mistaken", (Protocol,), mistake)()
    return Mutant(name, replace(world, protocol=protocol), shows)


# ---- clients that believe too much ----------------------------------------------------------------

MUTANTS = [
    of_client(
        "deadline from the reply",
        worlds.CONTENTION,
        left=lambda self, ttl, sent: int(ttl) - self.margin,
    ),
    of_client(
        "deadline from the receipt of a push",
        worlds.QUEUE_OF_ACQUIRES,
        left_of_push=lambda self, window, trip, granted: int(window) - self.margin,
    ),
    of_client(
        "no allowance for a clock that slipped before the push",
        worlds.QUEUE_OF_RENEWS,
        slip=lambda self, waited: 0,
    ),
    of_client("no margin for a skewed clock", worlds.CONTENTION, margin=0),
    of_client("no margin for a skewed clock after a push", worlds.QUEUE_OF_RENEWS, margin=0),
    of_client(
        "delayed acquire after its release",
        worlds.CONTENTION,
        "was given up, and holds again",
        set_tombstone=lambda self, client: 0,
    ),
    of_client(
        "holder that believes until its release is answered",
        worlds.CONTENTION,
        gone=lambda self, client: client,
    ),
    of_client(
        "holder that counts on units it gave up", worlds.RESIZES, shrunk=lambda self, client: client
    ),
    # in a store without a clock
    of_client(
        "push that is believed though an answer was lost",
        replace(worlds.CLOCKLESS_WAITER, tombstone=FOREVER),
        doubted=lambda self, client: client,
    ),
    of_client(
        "push that is believed from its arrival",
        worlds.CLOCKLESS_WAITER,
        left_of_push=lambda self, window, trip, granted: trip and int(window) - self.margin,
    ),
    of_client(
        "push that is believed after a long silence",
        replace(worlds.CLOCKLESS_WAITER, ids=(1, 2)),
        was_silent=lambda self, client, tombstone: False,
    ),
]


# ---- ledgers that forget a rule -------------------------------------------------------------------


def plant(name: str, target: Any, world: World, shows: str, mistake: Any, **more: Any) -> None:
    """It takes the place of a command's rule, of a method of `Transition`, or of what `target` names."""

    def planting() -> AbstractContextManager[Any]:
        if isinstance(target, type):
            return patch.dict(ledger._RULES, {target: mistake})
        place, name = (Transition, target) if isinstance(target, str) else target
        return patch.multiple(place, **{name: mistake, **more})  # type: ignore[no-any-return]

    MUTANTS.append(Mutant(name, world, shows, planting))


def in_ledger(target: Any, world: World, shows: str, **more: Any) -> Callable[[Any], Any]:
    def planted(mistake: Any) -> Any:
        plant(mistake.__name__.replace("_", " "), target, world, shows, mistake, **more)
        return mistake

    return planted


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


@in_ledger("_grant_next", worlds.LARGE_HEAD, "overtook")
def a_queue_that_grants_whatever_fits(transition: Transition) -> bool:
    for place in transition.book.queue():
        if transition.book.used + place.units <= transition.book.capacity:
            transition._grant_waiter(place)
            return True
    return False


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


plant(
    *("a newcomer that passes the queue", "fits", worlds.LARGE_HEAD, "overtook"),
    lambda change, units, *, queue=True: change.book.used + units <= change.book.capacity,
)
plant(
    "a place that is passed over though it speaks",
    *("_is_passed_over", worlds.DEAD_WAITERS, "overtook"),
    lambda change, place: change.book.ahead_of(place) == 0,
)
plant(
    *("a token that repeats", (transition, "next_token"), worlds.CONTENTION, "was granted after"),
    lambda last, stamp, floor: max(last, 1),
)
plant(
    *("a token that falls", (transition, "next_token"), worlds.WIPE, "was granted after"),
    lambda last, stamp, floor: last + 1,
)
plant(
    *("a queue that grants the last first", (QueueEntry, "rank"), worlds.DEAD_WAITERS, "overtook"),
    property(lambda place: (-place.priority, -place.arrival)),
)
plant(
    *("a sight that outlives what was seen", (clock, "mark_of"), worlds.CLOCKLESS_QUEUE, ""),
    lambda entry: (type(entry), 0, entry.beat),
)
plant(
    *("no allowance for an observer's clock", (clock, "DRIFT"), worlds.CLOCKLESS, "two believers"),
    0.0,
)

MUTANTS.append(
    Mutant(
        "a store that loses its book and promises exclusion",
        replace(worlds.WIPE, exclusive=True, grants=FOREVER),
        "two believers",
    )
)
