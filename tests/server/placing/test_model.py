"""Moves of a key between two stores, in every order that servers, clients and a mover can bring about."""

from dataclasses import replace

import pytest

from leasehold.model import Acquire, Granted, Inspect, Queued, Renew, Renewed, Status
from leasehold.server.placing import plans
from leasehold.server.placing.guards import Guards
from leasehold.server.placing.home import Home
from leasehold.server.placing.plans import Plan, To, plan_for
from tests.server.placing.model import World, explore

SMALL = World(copies=0, lapses=0, tries=(1, 1))


@pytest.mark.once
@pytest.mark.parametrize(
    "world",
    [
        replace(SMALL, lapses=99, servers=1),
        SMALL,
        replace(SMALL, servers=1, lapses=1, copies=1),
        replace(SMALL, moves=2, servers=1),
        replace(SMALL, servers=1, kind=b"semaphore", queues=(False, False)),
    ],
    ids=["all lapses", "two servers", "late copies", "there and back", "semaphore"],
)
def test_nothing_goes_wrong(world: World) -> None:
    found = explore(world, liveness=world.lapses == 99)
    assert found.flaw is None, "\n".join([found.flaw, *found.trace])
    assert found.states > 1_000


# ---- planted mistakes: each is found --------------------------------------------------------------


def looks_only(home: Home, command: Acquire, guards: Guards) -> Plan:
    """No guard: it looks whether anything stands at the old place."""
    return (yield from _looking(home, command, guards, guard_after=False))


def guards_too_late(home: Home, command: Acquire, guards: Guards) -> Plan:
    """The guard comes after the grant at the new place."""
    return (yield from _looking(home, command, guards, guard_after=True))


def _looking(home: Home, command: Acquire, guards: Guards, *, guard_after: bool) -> Plan:
    sign = Renew(command.key, command.id, command.ttl)
    (told,) = yield (To(home.place, (sign, Inspect(command.key))),)
    assert told is not None
    known, status = told
    if isinstance(known, Renewed):
        return (yield from plans._held_there(home, command))
    if isinstance(known, Granted | Queued):
        return known
    assert isinstance(status, Status)
    if status.holders or status.waiting:
        return plans.IN_BETWEEN
    reply = yield from plans._over(home, command, guards, known, status.last_token)
    if guard_after:
        yield (To(home.place, (guards.guard(command.key, home.epoch, 1, home.to),)),)
    return reply


def no_floor(home: Home, command: Acquire, guards: Guards) -> Plan:
    """Tokens of the new place follow its own clock only."""
    plan = plan_for(home, command, guards)
    asked = next(plan)
    try:
        while True:
            (to,) = asked
            bare = tuple(replace(c, floor=0) if isinstance(c, Acquire) else c for c in to.commands)
            asked = plan.send((yield (To(to.place, bare),)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


@pytest.mark.once
@pytest.mark.parametrize(
    ("world", "flaw"),
    [
        (replace(SMALL, tries=(2, 1), waits=()), "two hold it"),
        (replace(SMALL, tries=(2, 1), seals=False, waits=("moving",)), "two hold it"),
        (replace(SMALL, fresh=False), "two hold it"),
        (replace(SMALL, looks=False), "two hold it"),
        (replace(SMALL, guards_stand=False), "two hold it"),
        (replace(SMALL, plan=looks_only), "two hold it"),
        (replace(SMALL, plan=guards_too_late), "two hold it"),
        (replace(SMALL, plan=no_floor, lapses=1), "tokens fall"),
    ],
    ids=[
        "nobody waits",
        "no seal",
        "no rule of freshness",
        "the mover does not look",
        "guards lapse",
        "no guard",
        "the guard comes too late",
        "no floor",
    ],
)
def test_planted_mistakes_are_found(world: World, flaw: str) -> None:
    found = explore(world, liveness=False)
    assert found.flaw == flaw
