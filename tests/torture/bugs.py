"""Bugs that a simulation must catch, each planted where somebody could really make it."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

from dibs.core.timing import trusted
from dibs.locks.acquire import AcquireAttempt
from dibs.locks.allof import AllOfAttempt, LeasesBase
from dibs.locks.election import TermBase
from dibs.locks.lease import LeaseBase
from dibs.locks.requests import Grant
from dibs.locks.rwlock import RWLeaseBase
from dibs.locks.tasklock import TaskLeaseBase
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Granted,
    Lost,
    Notification,
    Refused,
    Release,
    Renew,
    Renewed,
    Reply,
    Resize,
    Unknown,
)
from dibs.runtime.port import Care, TimedReply
from tests.torture.network import Network, Weather
from tests.torture.simruntime import SimRuntime

type Apply = Callable[[Command], Reply]
type Twist = Callable[[Command, Apply], Reply]


@dataclass
class Bug:
    """What to change, by which broken promises (any of them) it must show, and in which actions."""

    shows: frozenset[str] = frozenset()
    kinds: tuple[str, ...] = ()
    """Those that it is looked for in; empty for all."""
    store: Callable[[Network], None] | None = None
    patches: tuple[tuple[str, Any], ...] = ()
    rates: float = 0.0
    weather: Weather = field(default_factory=Weather)
    cycles: int = 700
    """It is looked for in so many, in each of a few histories."""

    @contextmanager
    def planted(self) -> Generator[None]:
        """A class may inherit what it is to do otherwise, so the patch adds it. Raises for other names."""
        with ExitStack() as stack:
            for target, replacement in self.patches:
                resolve_name(target)  # or a bug in what was renamed would never be found
                stack.enter_context(patch(target, replacement, create=True))
            yield


def twisted(twist: Twist) -> Callable[[Network], None]:
    """A store in which `twist` stands between commands and ledger."""

    def plant(network: Network) -> None:
        honest = network.apply

        def apply(command: Command) -> Reply:
            return twist(command, honest)

        network.apply = apply  # type: ignore[method-assign]

    return plant


def made(make: Callable[[], Twist]) -> Callable[[Network], None]:
    """As `twisted`, with a memory of its own for each store."""

    def plant(network: Network) -> None:
        twisted(make())(network)

    return plant


def patched(target: str, replacement: Any) -> tuple[tuple[str, Any], ...]:
    """One thing of the primitives, replaced."""
    return ((f"dibs.locks.{target}", replacement),)


# ---- bugs that concern all leases: in the ledger, in what a client believes, in clocks and resource

# -- in the store


def anybody_releases() -> Twist:
    newest: dict[bytes, str] = {}

    def twist(command: Command, apply: Apply) -> Reply:
        reply = apply(command)
        if isinstance(command, Acquire | Renew) and isinstance(reply, Granted | Renewed):
            newest[command.key] = command.id
        if isinstance(command, Release) and reply == Unknown() and command.key in newest:
            return apply(Release(command.key, newest[command.key]))
        return reply

    return twist


def a_renewal_revives() -> Twist:
    asked: dict[str, Acquire] = {}

    def twist(command: Command, apply: Apply) -> Reply:
        reply = apply(command)
        if isinstance(command, Acquire):
            asked[command.id] = command
        if isinstance(command, Renew) and reply == Lost("expired") and command.id in asked:
            again = apply(replace(asked[command.id], queue=False))
            return Renewed(command.ttl) if isinstance(again, Granted) else reply
        return reply

    return twist


def tokens(change: Callable[[int], int]) -> Twist:
    def twist(command: Command, apply: Apply) -> Reply:
        reply = apply(command)
        return replace(reply, token=change(reply.token)) if isinstance(reply, Granted) else reply

    return twist


def the_dead_hold_on(command: Command, apply: Apply) -> Reply:
    if not isinstance(command, Acquire | Renew):
        return apply(command)
    reply = apply(replace(command, ttl=command.ttl * 1000))
    return replace(reply, ttl=command.ttl) if isinstance(reply, Granted | Renewed) else reply


# -- in the client

_call = SimRuntime.call
_notified = AcquireAttempt._notified


async def sent_when_answered(
    self: SimRuntime, command: Command, wait: float | None = None
) -> TimedReply:
    answer = await _call(self, command, wait)
    return TimedReply(answer.reply, self.now(), answer.resent)


def counted_from_the_push(
    self: AcquireAttempt, push: Notification, sent: float, store_now: float
) -> Grant | None:
    return _notified(self, push, self._rt.now(), push.granted_at)


def never_too_late(self: LeaseBase, now: float) -> Care:
    """Ask for more time, also when it is over."""
    return Care(renew=self._end is None, again_at=now + self._options.ttl / 3)


def whenever_it_comes(self: LeaseBase, answer: TimedReply) -> None:
    """Believe the store's word on a renewal, also past the deadline."""
    self._renewing = False
    if self._end is None and isinstance(answer.reply, Renewed | Granted):
        self._extend(answer.sent, answer.reply.ttl)


def all_of_it(ttl: float) -> float:
    return ttl


def anything_goes(self: Any, key: str, token: int, slots: tuple[int, ...]) -> bool:
    return True


OVERLAP = frozenset({"overlap", "slot"})
TOO_LONG = OVERLAP | {"deadline"}
"""Somebody believes in what may be somebody else's, and sooner or later is."""
TOKEN = frozenset({"token"})


LEASES_BUGS = {
    "anybody releases": Bug(OVERLAP, store=made(anybody_releases)),
    "a renewal revives": Bug(
        OVERLAP,
        store=made(a_renewal_revives),
        patches=(
            ("dibs.locks.lease.LeaseBase._check", never_too_late),
            ("dibs.locks.lease.LeaseBase._renewed", whenever_it_comes),
        ),
    ),
    "tokens repeat": Bug(TOKEN, store=twisted(tokens(lambda token: token >> 22))),
    "tokens fall": Bug(TOKEN, store=twisted(tokens(lambda token: (1 << 53) - token))),
    "sent when answered": Bug(
        TOO_LONG, patches=(("tests.torture.simruntime.SimRuntime.call", sent_when_answered),)
    ),
    "counted from the push": Bug(
        TOO_LONG,
        patches=(("dibs.locks.acquire.AcquireAttempt._notified", counted_from_the_push),),
    ),
    "no margin": Bug(
        TOO_LONG,
        patches=(
            ("dibs.locks.acquire.trusted", all_of_it),
            ("dibs.locks.lease.trusted", all_of_it),
        ),
    ),
    "clocks beyond the margin": Bug(TOO_LONG, rates=0.15),
    "a resource that compares nothing": Bug(
        frozenset({"stale write"}),
        patches=(("tests.torture.world.Resources.accepts", anything_goes),),
    ),
    "the dead hold on": Bug(
        frozenset({"starved", "stuck", "left"}), store=twisted(the_dead_hold_on)
    ),
}


# ---- bugs of semaphores: how many units there are, and which --------------------------------------

OF_SEMAPHORES = ("semaphore", "elastic")


def one_too_many(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Acquire) and command.capacity < MANY:
        return apply(replace(command, capacity=command.capacity + 1))
    return apply(command)


def always_the_first_slot(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(reply, Granted) and len(reply.slots) == 1:
        return replace(reply, slots=(0,))
    return reply


def holders_instead_of_units(command: Command, apply: Apply) -> Reply:
    if not isinstance(command, Acquire) or command.units == 1:
        return apply(command)
    reply = apply(replace(command, units=1))
    if isinstance(reply, Granted):
        return replace(reply, slots=(*reply.slots, reply.slots[0] + 1))
    return reply


def slots_from_the_top(command: Command, apply: Apply) -> Reply:
    """By the capacity that each caller has in mind, instead of the store's."""
    reply = apply(command)
    if isinstance(command, Acquire) and isinstance(reply, Granted) and command.capacity < MANY:
        return replace(reply, slots=tuple(command.capacity - 1 - slot for slot in reply.slots))
    return reply


SEMAPHORES_BUGS = {
    "one too many": Bug(frozenset({"overlap"}), OF_SEMAPHORES, store=twisted(one_too_many)),
    "a slot twice": Bug(frozenset({"slot"}), OF_SEMAPHORES, store=twisted(always_the_first_slot)),
    "holders are counted instead of units": Bug(
        frozenset({"overlap"}), OF_SEMAPHORES, store=twisted(holders_instead_of_units)
    ),
    "slots by the caller's capacity": Bug(
        frozenset({"slot"}), OF_SEMAPHORES, store=twisted(slots_from_the_top)
    ),
}


# ---- bugs of readers-writer locks: who is beside a writer, and how one becomes the other ----------

OF_READWRITE = ("rwlock",)

_grow = RWLeaseBase._grow

DELAYS = Weather(double=0.2, slow=0.2)


def room_for_one_reader(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Acquire) and command.units == MANY:
        return apply(replace(command, units=MANY - 1))
    return apply(command)


def only_said() -> Twist:
    """A downgrade is answered, and nothing is done."""
    tokens: dict[str, int] = {}

    def twist(command: Command, apply: Apply) -> Reply:
        if isinstance(command, Resize) and command.units == 1 and command.id in tokens:
            return Granted(tokens[command.id], (), 0.6)
        reply = apply(command)
        if isinstance(reply, Granted) and not isinstance(command, Resize):
            tokens[command.id] = reply.token  # type: ignore[union-attr]
        return reply

    return twist


def nobody_counts(command: Command, apply: Apply) -> Reply:
    """An upgrade is granted beside other readers."""
    reply = apply(command)
    if isinstance(command, Resize) and isinstance(reply, Refused) and reply.holders:
        token = max(holder.token for holder in reply.holders)
        return Granted(token + 1, (), 0.6)
    return reply


def the_latest_to_arrive() -> Twist:
    """Whichever change comes last counts, also an older one's delayed copy."""
    arrived = iter(range(1, 1 << 60))

    def twist(command: Command, apply: Apply) -> Reply:
        if isinstance(command, Resize):
            return apply(replace(command, seq=next(arrived)))
        return apply(command)

    return twist


async def with_the_old_token(self: RWLeaseBase) -> Refused | None:
    token = self.token
    refused = await _grow(self)
    self.token = token
    return refused


async def wherever_it_stands(self: Any, position: int) -> None:
    """Each waits for the other to leave."""


async def nobody_looks(self: Any, wait: Any) -> None:
    """Who waits in a circle waits on."""


READWRITE_BUGS = {
    "a reader beside the writer": Bug(
        frozenset({"overlap"}), OF_READWRITE, store=twisted(room_for_one_reader)
    ),
    "a downgrade keeps all": Bug(frozenset({"units"}), OF_READWRITE, store=made(only_said)),
    "an upgrade beside readers": Bug(
        frozenset({"overlap"}), OF_READWRITE, store=twisted(nobody_counts)
    ),
    "an older change undoes a newer one": Bug(
        frozenset({"overlap", "units"}),
        OF_READWRITE,
        store=made(the_latest_to_arrive),
        weather=DELAYS,
    ),
    "an upgrade keeps the old token": Bug(
        frozenset({"token"}),
        OF_READWRITE,
        patches=patched("rwlock.RWLeaseBase._grow", with_the_old_token),
    ),
    "two upgrades wait for each other": Bug(
        frozenset({"stuck"}),
        OF_READWRITE,
        patches=(
            *patched("acquire.AcquireAttempt._refuse_upgrade", wherever_it_stands),
            *patched(
                "deadlock.DeadlockDetector._look", nobody_looks
            ),  # which would find them later
        ),
    ),
}


# ---- bugs of task locks: how long a lock stays closed, and for whom -------------------------------

OF_STARTS = ("tasklock",)

_leave = TaskLeaseBase._leave
_release_command = LeaseBase._release_command
COMMAND = "tasklock.TaskLeaseBase._release_command"


async def a_failure_needs_no_pause(self: TaskLeaseBase, exc: BaseException | None) -> None:
    if exc is not None:
        self._retain_until = self._rt.now()
    await _leave(self, exc)


def as_any_lease(self: TaskLeaseBase) -> Release:
    return replace(_release_command(self), retain=0.0)


def from_the_end(self: TaskLeaseBase) -> Release:
    return replace(_release_command(self), retain=self._rules.retain)


def from_the_question(self: TaskLeaseBase) -> Release:
    keep = max(self._asked_at + self._rules.retain - self._rt.now(), 0.0)
    return replace(_release_command(self), retain=keep)


STARTS_BUGS = {
    "a failed task is released at once": Bug(
        frozenset({"early"}),
        OF_STARTS,
        patches=patched("tasklock.TaskLeaseBase._leave", a_failure_needs_no_pause),
    ),
    "a task lock is not kept": Bug(
        frozenset({"early"}),
        OF_STARTS,
        patches=patched(COMMAND, as_any_lease),
    ),
    "kept from the end": Bug(
        frozenset({"kept"}), OF_STARTS, patches=patched(COMMAND, from_the_end)
    ),
    "kept from the question": Bug(
        frozenset({"early"}), OF_STARTS, patches=patched(COMMAND, from_the_question)
    ),
}


# ---- bugs of elections: how long a leader believes in itself, and in which order a term ends ------

OF_LEADING = ("leader", "campaign", "run")


def by_the_store_s_time(self: TermBase, ttl: float) -> float:
    """The election's own deadline is nearer."""
    return trusted(ttl)


async def nobody_is_guarded(self: Any, term: TermBase, rt: Any) -> None:
    self._guarded.clear()


def resigns_some_time(self: TermBase) -> bool:
    return self._end is None


async def others_may_lead_first(self: TermBase, exc: BaseException | None) -> None:
    await LeaseBase._leave(self, exc)
    await self._stop()


@property  # type: ignore[misc]
def until_it_hears_otherwise(self: TermBase) -> bool:
    return self._end is None


LEADING_BUGS = {
    "a leader believes the store's ttl": Bug(
        frozenset({"deadline"}),
        OF_LEADING,
        patches=patched("lease.LeaseBase._trusted", by_the_store_s_time),
    ),
    "a term ends before its blocks": Bug(
        frozenset({"order"}),
        OF_LEADING,
        patches=patched("election.CampaignBase._until_unguarded", nobody_is_guarded),
    ),
    "a term survives its resignation": Bug(
        frozenset({"order"}),
        OF_LEADING,
        patches=patched("election.TermBase._resign", resigns_some_time),
    ),
    "a term is handed over before on_stopped": Bug(
        frozenset({"order", "overlap"}),
        OF_LEADING,
        patches=patched("election.TermBase._leave", others_may_lead_first),
    ),
    "a leader leads until it hears otherwise": Bug(
        frozenset({"deadline", "overlap"}),
        OF_LEADING,
        patches=patched("election.TermBase._stands", until_it_hears_otherwise),
    ),
}


# ---- bugs of those who hold several: what a failure leaves behind, and who waits for whom ---------

ALLOF = ("allof",)


_kept: list[Any] = []


async def the_first_stay(self: AllOfAttempt, wait: float | None) -> list[Any]:
    """What was had when the time was over."""
    try:
        await self._gather(wait)
    except BaseException:
        _kept.append(self._held)
        raise
    return self._held


def as_named(named: Any) -> list[Any]:
    return list({part.key: part for part in named}.values())


def of_the_first(self: LeasesBase[Any], needs: Any = 0) -> None:
    """One for all."""
    self._once[0].ensure(needs)


def with_the_first(self: Any) -> bool:
    """The first release leaves no level."""
    self._levels.clear()
    return True


def no_delay(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, lock_delay=0.0) if isinstance(command, Acquire) else command)


ATTEMPT = "allof.AllOfAttempt"

TOGETHER_BUGS = {
    "AllOf leaves what it had": Bug(
        frozenset({"left"}), ALLOF, patches=patched(f"{ATTEMPT}.run", the_first_stay)
    ),
    "AllOf takes in the order of its arguments": Bug(
        frozenset({"error", "stuck"}), ALLOF, patches=patched("allof.in_order", as_named)
    ),
    "AllOf asks the first of its leases only": Bug(
        frozenset({"deadline", "overlap"}),
        ALLOF,
        patches=patched("allof.LeasesBase.ensure", of_the_first),
    ),
    "the first release ends a reentrant hold": Bug(
        frozenset({"overlap", "error"}),
        ("reentrant",),
        patches=patched("reentrant.Depth.leave", with_the_first),
    ),
    "circles are not looked for": Bug(
        frozenset({"stuck"}),
        ("crossed",),
        patches=patched("deadlock.DeadlockDetector._look", nobody_looks),
    ),
    "no lock delay": Bug(frozenset({"early"}), ("delayed",), store=twisted(no_delay)),
}


BUGS = {
    **LEASES_BUGS,
    **SEMAPHORES_BUGS,
    **READWRITE_BUGS,
    **STARTS_BUGS,
    **LEADING_BUGS,
    **TOGETHER_BUGS,
}
