"""Bugs that a simulation must catch, each planted where somebody could really make it.

A bug is named as the function that plants it, and says by which broken promises (any of them) it must show.
"""

from collections.abc import Callable, Generator, Sequence
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

LOCKS = "dibs.locks."
CYCLES = 700
"""Each is looked for in so many, in each of a few histories."""


@dataclass
class Bug:
    shows: Sequence[str] = ()
    kinds: Sequence[str] = ()
    """The actions that it is looked for in; empty for all."""
    twist: Callable[[], Twist] | None = None
    """Makes what stands between the commands and the ledger of a store."""
    patches: Sequence[tuple[str, Any]] = ()
    rates: float = 0.0
    weather: Weather = field(default_factory=Weather)

    @contextmanager
    def planted(self) -> Generator[None]:
        """A class may inherit what it is to do otherwise, so the patch adds it. Raises for other names."""
        with ExitStack() as stack:
            for target, replacement in self.patches:
                resolve_name(target)  # or a bug in what was renamed would never be found
                stack.enter_context(patch(target, replacement, create=True))
            yield

    def plant_in(self, network: Network) -> None:
        network.weather = self.weather
        if self.twist is not None:
            honest, twist = network.apply, self.twist()
            network.apply = lambda command: twist(command, honest)  # type: ignore[method-assign]


BUGS: dict[str, Bug] = {}


def planted[F: Callable[..., Any]](bug: Bug) -> Callable[[F], F]:
    def plant(function: F) -> F:
        BUGS[function.__name__.replace("_", " ")] = bug
        return function

    return plant


def in_store(*shows: str, of: Sequence[str] = (), weather: Weather | None = None) -> Any:
    """The store answers as the function does. One without parameters makes it, with a memory of its own."""

    def plant(function: Any) -> Any:
        twist = (lambda: function) if function.__code__.co_argcount else function
        return planted(Bug(shows, of, twist, weather=weather or Weather()))(function)

    return plant


def in_code(*targets: str, shows: str, of: Sequence[str] = (), also: Any = ()) -> Any:
    """The function replaces these; `also` are more replacements."""

    def plant(function: Any) -> Any:
        patches = [*((target, function) for target in targets), *also]
        return planted(Bug(shows.split(), of, patches=patches))(function)

    return plant


# ---- bugs that concern all leases: in the ledger, in what a client believes, in clocks and resource

TOO_LONG = "overlap slot deadline"
"""Somebody believes in what may be somebody else's, and sooner or later is."""


@in_store("overlap", "slot")
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


def never_too_late(self: LeaseBase, now: float) -> Care:
    """Ask for more time, also when it is over."""
    return Care(renew=self._end is None, again_at=now + self._options.ttl / 3)


def whenever_it_comes(self: LeaseBase, answer: TimedReply) -> None:
    """Believe the store's word on a renewal, also past the deadline."""
    self._renewing = False
    if self._end is None and isinstance(answer.reply, Renewed | Granted):
        self._extend(answer.sent, answer.reply.ttl)


@in_store("overlap", "slot")
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


BUGS["a renewal revives"].patches = (
    (f"{LOCKS}lease.LeaseBase._check", never_too_late),
    (f"{LOCKS}lease.LeaseBase._renewed", whenever_it_comes),
)


@in_store("token")
def tokens_repeat(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return replace(reply, token=reply.token >> 22) if isinstance(reply, Granted) else reply


@in_store("token")
def tokens_fall(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return replace(reply, token=(1 << 53) - reply.token) if isinstance(reply, Granted) else reply


@in_store("starved", "stuck", "left")
def the_dead_hold_on(command: Command, apply: Apply) -> Reply:
    if not isinstance(command, Acquire | Renew):
        return apply(command)
    reply = apply(replace(command, ttl=command.ttl * 1000))
    return replace(reply, ttl=command.ttl) if isinstance(reply, Granted | Renewed) else reply


_call, _notified = SimRuntime.call, AcquireAttempt._notified


@in_code("tests.torture.simruntime.SimRuntime.call", shows=TOO_LONG)
async def sent_when_answered(
    self: SimRuntime, command: Command, wait: float | None = None
) -> TimedReply:
    answer = await _call(self, command, wait)
    return TimedReply(answer.reply, self.now(), answer.resent)


@in_code(f"{LOCKS}acquire.AcquireAttempt._notified", shows=TOO_LONG)
def counted_from_the_push(
    self: AcquireAttempt, push: Notification, sent: float, store_now: float
) -> Grant | None:
    return _notified(self, push, self._rt.now(), push.granted_at)


@in_code(f"{LOCKS}acquire.trusted", f"{LOCKS}lease.trusted", shows=TOO_LONG)
def no_margin(ttl: float) -> float:
    return ttl


BUGS["clocks beyond the margin"] = Bug(TOO_LONG.split(), rates=0.15)


@planted(Bug(["stale write"], patches=[("tests.torture.world.Resources.accepts", lambda *_: True)]))
def a_resource_that_compares_nothing() -> None: ...


# ---- bugs of semaphores: how many units there are, and which --------------------------------------

SEMAPHORES = ("semaphore", "elastic")


@in_store("overlap", of=SEMAPHORES)
def one_too_many(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Acquire) and command.capacity < MANY:
        return apply(replace(command, capacity=command.capacity + 1))
    return apply(command)


@in_store("slot", of=SEMAPHORES)
def a_slot_twice(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(reply, Granted) and len(reply.slots) == 1:
        return replace(reply, slots=(0,))
    return reply


@in_store("overlap", of=SEMAPHORES)
def holders_are_counted_instead_of_units(command: Command, apply: Apply) -> Reply:
    if not isinstance(command, Acquire) or command.units == 1:
        return apply(command)
    reply = apply(replace(command, units=1))
    if isinstance(reply, Granted):
        return replace(reply, slots=(*reply.slots, reply.slots[0] + 1))
    return reply


@in_store("slot", of=SEMAPHORES)
def slots_by_the_capacity_of_each_caller(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(command, Acquire) and isinstance(reply, Granted) and command.capacity < MANY:
        return replace(reply, slots=tuple(command.capacity - 1 - slot for slot in reply.slots))
    return reply


# ---- bugs of readers-writer locks: who is beside a writer, and how one becomes the other ----------

READWRITE = ("rwlock",)

_grow = RWLeaseBase._grow


async def nobody_looks(self: Any, wait: Any) -> None:
    """Who waits in a circle waits on."""


NO_DETECTION = (f"{LOCKS}deadlock.DeadlockDetector._look", nobody_looks)


@in_store("overlap", of=READWRITE)
def a_reader_beside_the_writer(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Acquire) and command.units == MANY:
        return apply(replace(command, units=MANY - 1))
    return apply(command)


@in_store("units", of=READWRITE)
def a_downgrade_is_answered_and_nothing_is_done() -> Twist:
    tokens: dict[str, int] = {}

    def twist(command: Command, apply: Apply) -> Reply:
        if isinstance(command, Resize) and command.units == 1 and command.id in tokens:
            return Granted(tokens[command.id], (), 0.6)
        reply = apply(command)
        if isinstance(reply, Granted) and not isinstance(command, Resize):
            tokens[command.id] = reply.token  # type: ignore[union-attr]
        return reply

    return twist


@in_store("overlap", of=READWRITE)
def an_upgrade_beside_readers(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(command, Resize) and isinstance(reply, Refused) and reply.holders:
        return Granted(max(holder.token for holder in reply.holders) + 1, (), 0.6)
    return reply


@in_store("overlap", "units", of=READWRITE, weather=Weather(double=0.2, slow=0.2))
def an_older_change_that_comes_late_undoes_a_newer_one() -> Twist:
    arrived = iter(range(1, 1 << 60))

    def twist(command: Command, apply: Apply) -> Reply:
        if isinstance(command, Resize):
            return apply(replace(command, seq=next(arrived)))
        return apply(command)

    return twist


@in_code(f"{LOCKS}rwlock.RWLeaseBase._grow", shows="token", of=READWRITE)
async def an_upgrade_keeps_the_old_token(self: RWLeaseBase) -> Refused | None:
    token = self.token
    refused = await _grow(self)
    self.token = token
    return refused


@in_code(
    f"{LOCKS}acquire.AcquireAttempt._refuse_upgrade",
    shows="stuck",
    of=READWRITE,
    also=[NO_DETECTION],  # which would find them later
)
async def two_upgrades_wait_for_each_other(self: Any, position: int) -> None: ...


# ---- bugs of task locks: how long a lock stays closed, and for whom -------------------------------

STARTS = ("tasklock",)

_leave = TaskLeaseBase._leave
_release_command = LeaseBase._release_command
RELEASE = f"{LOCKS}tasklock.TaskLeaseBase._release_command"


@in_code(f"{LOCKS}tasklock.TaskLeaseBase._leave", shows="early", of=STARTS)
async def a_failed_task_is_released_at_once(self: TaskLeaseBase, exc: BaseException | None) -> None:
    if exc is not None:
        self._retain_until = self._rt.now()
    await _leave(self, exc)


@in_code(RELEASE, shows="early", of=STARTS)
def a_task_lock_is_not_kept(self: TaskLeaseBase) -> Release:
    return replace(_release_command(self), retain=0.0)


@in_code(RELEASE, shows="kept", of=STARTS)
def kept_from_the_end(self: TaskLeaseBase) -> Release:
    return replace(_release_command(self), retain=self._rules.retain)


@in_code(RELEASE, shows="early", of=STARTS)
def kept_from_the_question(self: TaskLeaseBase) -> Release:
    keep = max(self._asked_at + self._rules.retain - self._rt.now(), 0.0)
    return replace(_release_command(self), retain=keep)


# ---- bugs of elections: how long a leader believes in itself, and in which order a term ends ------

LEADING = ("leader", "campaign", "run")


@in_code(f"{LOCKS}lease.LeaseBase._trusted", shows="deadline", of=LEADING)
def a_leader_believes_the_store_s_ttl(self: TermBase, ttl: float) -> float:
    return trusted(ttl)  # the election's own deadline is nearer


@in_code(f"{LOCKS}election.CampaignBase._until_unguarded", shows="order", of=LEADING)
async def a_term_ends_before_its_blocks(self: Any, term: TermBase, rt: Any) -> None:
    self._guarded.clear()


@in_code(f"{LOCKS}election.TermBase._resign", shows="order", of=LEADING)
def a_term_survives_its_resignation(self: TermBase) -> bool:
    return self._end is None


@in_code(f"{LOCKS}election.TermBase._leave", shows="order overlap", of=LEADING)
async def a_term_is_handed_over_before_on_stopped(
    self: TermBase, exc: BaseException | None
) -> None:
    await LeaseBase._leave(self, exc)
    await self._stop()


def until_it_hears_otherwise(self: TermBase) -> bool:
    return self._end is None


STANDS = (f"{LOCKS}election.TermBase._stands", property(until_it_hears_otherwise))
BUGS["a leader leads until it hears otherwise"] = Bug(
    ["deadline", "overlap"], LEADING, patches=[STANDS]
)


# ---- bugs of those who hold several: what a failure leaves behind, and who waits for whom ---------

ALLOF = ("allof",)

_kept: list[Any] = []


@in_code(f"{LOCKS}allof.AllOfAttempt.run", shows="left", of=ALLOF)
async def allof_leaves_what_it_had(self: AllOfAttempt, wait: float | None) -> list[Any]:
    try:
        await self._gather(wait)
    except BaseException:
        _kept.append(self._held)
        raise
    return self._held


@in_code(f"{LOCKS}allof.in_order", shows="error stuck", of=ALLOF)
def allof_takes_in_the_order_of_its_arguments(named: Any) -> list[Any]:
    return list({part.key: part for part in named}.values())


@in_code(f"{LOCKS}allof.LeasesBase.ensure", shows="deadline overlap", of=ALLOF)
def allof_asks_the_first_of_its_leases_only(self: LeasesBase[Any], needs: Any = 0) -> None:
    self._once[0].ensure(needs)


@in_code(f"{LOCKS}reentrant.Depth.leave", shows="overlap error", of=("reentrant",))
def the_first_release_ends_a_reentrant_hold(self: Any) -> bool:
    self._levels.clear()
    return True


BUGS["circles are not looked for"] = Bug(["stuck"], ("crossed",), patches=[NO_DETECTION])


@in_store("early", of=("delayed",))
def no_lock_delay(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, lock_delay=0.0) if isinstance(command, Acquire) else command)
