"""The search notices every mistake that it is there to notice: each is planted, and must be caught."""

import pytest

from tests.model.mutants import MUTANTS, Mutant
from tests.model.search import explore

pytestmark = pytest.mark.once  # servers and searches are the same for each version of Python


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_mistake_is_caught(mutant: Mutant) -> None:
    with mutant.plant():
        found = explore(mutant.world)
    assert found.flaw is not None, f"{mutant.name}: {len(found.states)} states, and nothing noticed"
    assert mutant.caught_as in found.flaw, found.flaw
    assert "\n  " in found.flaw, "a counterexample names the steps that lead to it"
