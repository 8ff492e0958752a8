"""The promises of DESIGN §7 hold in every state that a small world can come to."""

import pytest

from tests.model.mutants import MUTANTS, Mutant
from tests.model.search import explore
from tests.model.size import World
from tests.model.worlds import WORLDS

LARGE = {
    "slots of a semaphore",
    "a place that speaks by Acquire",
    "a place that speaks by Renew",
    "a hold that shrinks and grows in a store without a clock",
    "a queue in a store without a clock",
    "a waiter whose Acquires come late in a store without a clock",
    "a waiter that speaks by Acquire in a store without a clock",
    "a store that restarts with its book",
    "a store without a clock",
}

_OF_LARGE = (pytest.mark.long, pytest.mark.timeout(600))


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(world, id=world.name, marks=_OF_LARGE if world.name in LARGE else ())
        for world in WORLDS
    ],
)
def test_nothing_goes_wrong(world: World) -> None:
    found = explore(world)
    assert found.flaw is None, found.flaw
    missed = [what for what in world.reaches if not found.seen[what]]
    assert not missed, f"{world.name} proves nothing about {missed}: {dict(found.seen)}"


pytestmark = pytest.mark.once  # servers and searches are the same for each version of Python


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_mistake_is_caught(mutant: Mutant) -> None:
    with mutant.plant():
        found = explore(mutant.world)
    assert found.flaw is not None, f"{mutant.name}: {len(found.states)} states, and nothing noticed"
    assert mutant.caught_as in found.flaw, found.flaw
    assert "\n  " in found.flaw, "a counterexample names the steps that lead to it"
