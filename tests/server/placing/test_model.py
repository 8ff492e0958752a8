"""Moves of a key between two stores, in every order that servers, clients and a mover can bring about."""

from dataclasses import replace

import pytest

from tests.server.placing.mistakes import does_not_look, guards_too_late, looks_only, no_floor
from tests.server.placing.search import explore
from tests.server.placing.states import World

SMALL = World(copies=0, lapses=0, tries=(1, 1))
DENIED = "a lease is denied"

WITHHELD = replace(
    SMALL, queues=(False, False), renews=(1, 0), is_sealed=True, crashes=False, asks=False
)
IN_LINE = replace(WITHHELD, queues=(True, False), renews=(2, 0), roams=True)


@pytest.mark.once
@pytest.mark.parametrize(
    "world",
    [
        replace(SMALL, lapses=99, servers=1),
        SMALL,
        replace(SMALL, servers=1, lapses=1, copies=1),
        replace(SMALL, moves=2, servers=1),
        replace(SMALL, servers=1, kind=b"semaphore", queues=(False, False)),
        replace(SMALL, servers=2, lone=True, queues=(False, False)),
        WITHHELD,
        IN_LINE,
    ],
    ids=[
        "all lapses",
        "two servers",
        "late copies",
        "there and back",
        "semaphore",
        "lone",
        "renewals of what was withheld",
        "renewals of places in line",
    ],
)
def test_nothing_goes_wrong(world: World) -> None:
    found = explore(world, liveness=world.lapses == 99)
    assert found.flaw is None, "\n".join([found.flaw, *found.trace])
    assert found.states > 1_000


# ---- planted mistakes: each is found --------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(
    ("world", "flaw"),
    [
        (replace(SMALL, tries=(2, 1), waits=()), "two hold it"),
        (replace(SMALL, tries=(2, 1), seals=False, waits=("moving",)), "two hold it"),
        (replace(SMALL, lone=True, tries=(2, 1), waits=("sealed", "clearing")), "two hold it"),
        (replace(SMALL, fresh=False), "two hold it"),
        (replace(SMALL, looks=False), "two hold it"),
        (replace(SMALL, guards_stand=False), "two hold it"),
        (replace(SMALL, plan=does_not_look), "two hold it"),
        (replace(SMALL, plan=looks_only), "two hold it"),
        (replace(SMALL, plan=guards_too_late), "two hold it"),
        (replace(SMALL, plan=no_floor, lapses=1), "tokens fall"),
        (replace(SMALL, is_sure=False), DENIED),
        (replace(WITHHELD, remembers=False), "two hold it"),
        (replace(WITHHELD, minds=False), "two hold it"),
        (replace(IN_LINE, keeps_guards=False), "two hold it"),
    ],
    ids=[
        "nobody waits",
        "no seal",
        "not all have heard of a second store",
        "no rule of freshness",
        "the mover does not look",
        "guards lapse",
        "whoever comes does not look",
        "no guard",
        "the guard comes too late",
        "no floor",
        "an old table is enough to say that there is nothing",
        "a grant that was withheld may be renewed",
        "also at a place that is sealed",
        "guards are taken from whoever waits",
    ],
)
def test_planted_mistakes_are_found(world: World, flaw: str) -> None:
    found = explore(replace(world, asks=flaw == DENIED), liveness=False)
    assert found.flaw == flaw
