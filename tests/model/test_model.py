"""The promises of docs/guarantees.md hold in every state that a small world can come to."""

from dataclasses import replace

import pytest

from tests.model.mutants import MUTANTS, Mutant
from tests.model.search import explore
from tests.model.size import World
from tests.model.worlds import CONTENTION, KEPT, LARGE_HEAD, RESIZES, REVOCATION, WORLDS

pytestmark = pytest.mark.once  # searches are the same for each version of Python

SMALLER = (
    replace(CONTENTION, ids=(1, 1), name=f"{CONTENTION.name}, with an id each"),
    replace(RESIZES, renewals=(2, 0), name=f"{RESIZES.name} a little"),
)
"""In CI, instead of the larger ones of the same names."""

SMALL = (*SMALLER, LARGE_HEAD, REVOCATION, KEPT)
LARGE = [world for world in WORLDS if world not in SMALL]

_OF_LARGE = (pytest.mark.long, pytest.mark.timeout(600))


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [
        *(pytest.param(world, id=world.name) for world in SMALL),
        *(pytest.param(world, id=world.name, marks=_OF_LARGE) for world in LARGE),
    ],
)
def test_nothing_goes_wrong(world: World) -> None:
    found = explore(world)
    assert found.flaw is None, found.flaw
    missed = [what for what in world.reaches.split() if not found.seen[what]]
    assert not missed, f"{world.name} proves nothing about {missed}: {dict(found.seen)}"


DEEP = {
    "push that is believed though an answer was lost",
    "push that is believed after a long silence",
    "push that is believed from its arrival",
    "no allowance for a clock that slipped before the push",
    "a delayed resize",
    "deadline from the receipt of a push",
    "a repeated acquire that renews nothing",
    "a queue that waits for its dead head",
}
"""Mistakes that show after very many states."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=_OF_LARGE if each.name in DEEP else ())
        for each in MUTANTS
    ],
)
def test_a_planted_mistake_is_caught(mutant: Mutant) -> None:
    with mutant.plant():
        found = explore(mutant.world)
    assert found.flaw is not None, f"{len(found.states)} states, and nothing noticed"
    assert mutant.shows in found.flaw.partition("\n")[0], found.flaw
    assert "\n  " in found.flaw, "a counterexample names the steps that lead to it"
