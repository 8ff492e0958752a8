"""What becomes of a command about a key whose directory moves: pure, as conversations with both places.

A plan is a generator: it yields what is to be asked of which places, all at a time, is sent what came of
it (None where a place gave no answer), and returns the reply. `tests/server/placing/model.py` explores every
order in which such steps of several servers and a mover can interleave.

The key stays at the old place until nothing stands there. Then a *guard* of ours takes it, by the old
place's own ledger, and from that moment on it is at the new place: what is granted there has a token above
the guard's, which is above all that the old place ever gave. Until then whoever holds or waits at the old
place goes on there, and whoever comes anew is refused, as if the holders there were at the new place.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from dibs.core.timing import BURIAL
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Failed,
    Gone,
    Granted,
    Inspect,
    Lost,
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
    Status,
)
from dibs.server.placing.guards import Guards
from dibs.server.placing.home import Home
from dibs.server.placing.merging import merged


@dataclass(frozen=True, slots=True)
class To:
    """Commands about one key for one place: one round trip, in this order."""

    place: str
    commands: tuple[Command, ...]


type Told = Sequence[Sequence[Reply] | None]
type Plan = Generator[tuple[To, ...], Told, Reply]

AWAY = Failed("away", "its directory is moving, and one of its two stores can't be reached")
IN_BETWEEN = Refused("closed", (), 1.0)
LATE = Failed("busy", "its directory has moved, and what it was granted came too late: ask anew")
_SEMAPHORE = b"semaphore:"
"""The one kind of key whose capacity may be declared otherwise, and greater, by the next who comes."""


def plan_for(home: Home, command: Command, guards: Guards, *, is_untold: bool = False) -> Plan:
    """How a command is carried out amid a move.

    `is_untold`: that its id holds something may never have been told.
    """
    match command:
        case Acquire():
            return acquire(home, command, guards)
        case Renew() | Release() | Resize():
            return by_id(home, command, is_untold=is_untold)
        case Inspect():
            return inspect(home, command, guards)
        case Revoke():
            return revoke(home, command, guards)


# ---- acquiring ------------------------------------------------------------------------------------


def acquire(home: Home, command: Acquire, guards: Guards) -> Plan:
    """At the old place if it is known there; else at the new one, once the key is guarded."""
    key = command.key
    guard = guards.guard(key, home.epoch, command.capacity, home.to)
    sign = Inspect(key) if home.sealed else Renew(key, command.id, command.ttl, command.inbox)
    (told,) = yield (To(home.place, (sign, guard)),)
    if told is None:
        return AWAY
    known, guarded = told
    if isinstance(guarded, Granted):
        return (yield from _over(home, command, guards, known, guarded.token))
    match known:
        case Renewed():
            return (yield from _held_there(home, command))
        case Granted() | Queued() | Failed():
            return known
        case Lost(reason="revoked"):
            return Gone()
        case _:
            pass
    if isinstance(guarded, Refused):
        return _without_guards(guarded, home, key, guards)
    return guarded if isinstance(guarded, Failed) else IN_BETWEEN


def _held_there(home: Home, command: Acquire) -> Plan:
    """It holds at the old place; a Resize that changes nothing tells its token, and never grants it anew."""
    (told,) = yield (To(home.place, (Resize(command.key, command.id, command.units, 0),)),)
    if told is None:
        return AWAY
    (reply,) = told
    return Gone() if isinstance(reply, Lost) else reply


def _over(home: Home, command: Acquire, guards: Guards, known: Reply, last_token: int) -> Plan:
    """The key is guarded, so it is at the new place."""
    before: list[Command] = []
    if command.key.startswith(_SEMAPHORE) and command.capacity < MANY:
        before.append(guards.wall(command.key, home.epoch, command.capacity, home.to))
    if isinstance(known, Queued):  # behind the guard, where nothing is granted any more
        before.append(Release(command.key, command.id, bury=BURIAL))
    if before:
        (told,) = yield (To(home.place, tuple(before)),)
        if told is None:
            return AWAY
        if isinstance(before[0], Acquire) and not isinstance(told[0], Granted):
            return IN_BETWEEN
    floor = max(command.floor, home.floor, last_token)
    (told,) = yield (To(home.to, (replace(command, floor=floor),)),)
    return AWAY if told is None else told[0]


def _without_guards(refused: Refused, home: Home, key: bytes, guards: Guards) -> Refused:
    """Who is in the way there; nobody asks for longer than the next look."""
    holders = guards.others(key, home.epoch, refused.holders)
    return Refused(refused.reason if holders else "closed", holders, min(refused.recheck_in, 1.0))


# ---- what names an id -----------------------------------------------------------------------------

_BEST = (Renewed, Granted, Released, Refused, Queued)
"""Which of two answers counts, the first of these: an id is at one place, or nowhere."""


def by_id(home: Home, command: Command, *, is_untold: bool = False) -> Plan:
    """Renewals, releases and resizes go to both places: where the id is, it is answered."""
    told = yield (To(home.place, (command,)), To(home.to, (command,)))
    replies = [each[0] for each in told if each is not None]
    if home.sealed and told[0] is not None and _is_new(command, told[0][0], is_untold=is_untold):
        there = None if told[1] is None else told[1][0]
        return there if isinstance(there, Granted | Renewed) else LATE
    for kind in _BEST:
        for reply in replies:
            if isinstance(reply, kind):
                return reply
    failed = [each for each in replies if isinstance(each, Failed)]
    if failed or len(replies) < len(told):
        return failed[0] if failed else AWAY
    revoked = [each for each in replies if isinstance(each, Lost) and each.reason == "revoked"]
    return revoked[0] if revoked else replies[0]


def _is_new(command: Command, reply: Reply, *, is_untold: bool) -> bool:
    """Whether it would be the first that its caller hears of what it holds."""
    if is_untold:
        return isinstance(reply, Granted | Renewed)
    return isinstance(command, Renew) and isinstance(reply, Granted)


# ---- seeing and ending ----------------------------------------------------------------------------


def inspect(home: Home, command: Inspect, guards: Guards) -> Plan:
    """Who holds and waits, wherever that is."""
    told = yield tuple(To(place, (command,)) for place in home.places)
    found: list[Status] = []
    for each in told:
        if each is None:
            return AWAY
        if not isinstance(each[0], Status):
            return each[0]
        found.append(each[0])
    holders = guards.others(command.key, _guarded_for(home), found[0].holders)
    return merged([replace(found[0], holders=holders), *found[1:]])


def revoke(home: Home, command: Revoke, guards: Guards) -> Plan:
    """Everybody, or the one that is named; never a guard, of which this server may not know yet."""
    status = yield from inspect(home, Inspect(command.key), guards)
    if not isinstance(status, Status):
        return status
    leases = [each.lease for each in status.holders if each.lease]
    wanted = leases if command.lease is None else [each for each in leases if each == command.lease]
    commands = tuple(replace(command, lease=each) for each in wanted)
    if not commands:
        return Revoked(0, 0.0)
    told = yield tuple(To(place, commands) for place in home.places)
    count, ends_in = 0, 0.0
    for replies in told:
        if replies is None:
            return AWAY
        for reply in replies:
            if not isinstance(reply, Revoked):
                return reply
            count, ends_in = count + reply.count, max(ends_in, reply.ends_in)
    return Revoked(count, ends_in)


def _guarded_for(home: Home) -> int:
    """The move whose guards may stand at its place: this one, or the next."""
    return home.epoch if home.to else home.epoch + 1
