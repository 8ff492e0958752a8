"""Bugs that concern all leases: in the ledger, in what a client believes, in clocks and resources."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dibs.locks.acquire import AcquireAttempt
from dibs.locks.lease import LeaseBase
from dibs.locks.requests import Grant
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Lost,
    Notification,
    Release,
    Renew,
    Renewed,
    Reply,
    Unknown,
)
from dibs.runtime.port import Care, TimedReply
from tests.torture.bugs.bug import Apply, Bug, Twist, made, twisted
from tests.torture.simruntime import SimRuntime

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


def the_dead_hold_on(command: Command, apply: Apply) -> Reply:
    if not isinstance(command, Acquire | Renew):
        return apply(command)
    reply = apply(replace(command, ttl=command.ttl * 1000))
    return replace(reply, ttl=command.ttl) if isinstance(reply, Granted | Renewed) else reply


# ---- in the client
# --------------------------------------------------------------------------------

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


BUGS = {
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
