"""Bugs of readers-writer locks: who is beside a writer, and how one becomes the other."""

from dataclasses import replace
from typing import Any

from dibs.locks.rwlock import RWLeaseBase
from dibs.model import MANY, Acquire, Command, Granted, Refused, Reply, Resize
from tests.torture.bugs.bug import Apply, Bug, Twist, made, patched, twisted
from tests.torture.network import Weather

WHERE = ("rwlock",)

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


BUGS = {
    "a reader beside the writer": Bug(
        frozenset({"overlap"}), WHERE, store=twisted(room_for_one_reader)
    ),
    "a downgrade keeps all": Bug(frozenset({"units"}), WHERE, store=made(only_said)),
    "an upgrade beside readers": Bug(frozenset({"overlap"}), WHERE, store=twisted(nobody_counts)),
    "an older change undoes a newer one": Bug(
        frozenset({"overlap", "units"}), WHERE, store=made(the_latest_to_arrive), weather=DELAYS
    ),
    "an upgrade keeps the old token": Bug(
        frozenset({"token"}),
        WHERE,
        patches=patched("rwlock.RWLeaseBase._grow", with_the_old_token),
    ),
    "two upgrades wait for each other": Bug(
        frozenset({"stuck"}),
        WHERE,
        patches=(
            *patched("acquire.AcquireAttempt._refuse_upgrade", wherever_it_stands),
            *patched(
                "deadlock.DeadlockDetector._look", nobody_looks
            ),  # which would find them later
        ),
    ),
}
