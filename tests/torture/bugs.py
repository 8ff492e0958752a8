"""Bugs that a simulation must catch, each planted where somebody could really make it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from leasehold.model import (
    MANY,
    Acquire,
    Command,
    Granted,
    Lost,
    Release,
    Renew,
    Renewed,
    Reply,
    Unknown,
    Wakeup,
)
from leasehold.primitives.acquire import Acquiring, Grant
from leasehold.primitives.lease import LeaseBase
from leasehold.runtime.port import Answer, Care
from tests.torture.network import Network
from tests.torture.simruntime import SimRuntime

type Apply = Callable[[Command], Reply]
type Twist = Callable[[Command, Apply], Reply]


@dataclass
class Bug:
    """What to change, and by which broken promises it must show."""

    shows: frozenset[str] = frozenset()
    store: Callable[[Network], None] | None = None
    patches: tuple[tuple[str, Any], ...] = ()
    rates: float = 0.0

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, replacement in self.patches:
                stack.enter_context(patch(target, replacement))
            yield


def twisted(twist: Twist) -> Callable[[Network], None]:
    """A store in which `twist` stands between commands and ledger."""

    def plant(network: Network) -> None:
        honest = network.apply

        def apply(command: Command) -> Reply:
            return twist(command, honest)

        network.apply = apply  # type: ignore[method-assign]

    return plant


# ---- in the store
# ---------------------------------------------------------------------------------


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


def one_too_many(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Acquire) and command.capacity < MANY:
        return apply(replace(command, capacity=command.capacity + 1))
    return apply(command)


def always_the_first_slot(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(reply, Granted) and len(reply.slots) == 1:
        return replace(reply, slots=(0,))
    return reply


def the_dead_hold_on(command: Command, apply: Apply) -> Reply:
    if not isinstance(command, Acquire | Renew):
        return apply(command)
    reply = apply(replace(command, ttl=command.ttl * 1000))
    return replace(reply, ttl=command.ttl) if isinstance(reply, Granted | Renewed) else reply


# ---- in the client
# --------------------------------------------------------------------------------

_call = SimRuntime.call
_pushed = Acquiring._pushed


async def sent_when_answered(
    self: SimRuntime, command: Command, patience: float | None = None
) -> Answer:
    answer = await _call(self, command, patience)
    return Answer(answer.reply, self.now(), answer.resent)


def counted_from_the_push(
    self: Acquiring, push: Wakeup, sent: float, store_now: float
) -> Grant | None:
    return _pushed(self, push, self._rt.now(), push.granted_at)


def never_too_late(self: LeaseBase, now: float) -> Care:
    """Ask for more time, also when it is over."""
    return Care(renew=self._end is None, again_at=now + self._terms.ttl / 3)


def whenever_it_comes(self: LeaseBase, answer: Answer) -> None:
    """Believe the store's word on a renewal, also past the deadline."""
    self._renewing = False
    if self._end is None and isinstance(answer.reply, Renewed | Granted):
        self._extend(answer.sent, answer.reply.ttl)


def all_of_it(ttl: float) -> float:
    return ttl


def anything_goes(self: Any, key: str, token: int, slots: tuple[int, ...]) -> bool:
    return True


OVERLAP = frozenset({"overlap"})
TOKEN = frozenset({"token"})


def made(make: Callable[[], Twist]) -> Callable[[Network], None]:
    """As `twisted`, with a memory of its own for each store."""

    def plant(network: Network) -> None:
        twisted(make())(network)

    return plant


BUGS = {
    "anybody releases": Bug(OVERLAP, made(anybody_releases)),
    "a renewal revives": Bug(
        OVERLAP,
        made(a_renewal_revives),
        patches=(
            ("leasehold.primitives.kept.KeptLease._check", never_too_late),
            ("leasehold.primitives.kept.KeptLease._renewed", whenever_it_comes),
        ),
    ),
    "one too many": Bug(OVERLAP, twisted(one_too_many)),
    "a slot twice": Bug(frozenset({"slot"}), twisted(always_the_first_slot)),
    "tokens repeat": Bug(TOKEN, twisted(tokens(lambda token: token >> 22))),
    "tokens fall": Bug(TOKEN, twisted(tokens(lambda token: (1 << 53) - token))),
    "sent when answered": Bug(
        OVERLAP, patches=(("tests.torture.simruntime.SimRuntime.call", sent_when_answered),)
    ),
    "counted from the push": Bug(
        OVERLAP,
        patches=(("leasehold.primitives.acquire.Acquiring._pushed", counted_from_the_push),),
    ),
    "no margin": Bug(
        OVERLAP,
        patches=(
            ("leasehold.primitives.acquire.trusted", all_of_it),
            ("leasehold.primitives.kept.trusted", all_of_it),
        ),
    ),
    "clocks beyond the margin": Bug(OVERLAP, rates=0.15),
    "a resource that compares nothing": Bug(
        frozenset({"stale write"}),
        patches=(("tests.torture.life.Resources.accepts", anything_goes),),
    ),
    "the dead hold on": Bug(frozenset({"starved"}), twisted(the_dead_hold_on)),
}
