"""The promises of DESIGN §7 hold in every state that a small world can come to."""

import pytest

from tests.model.search import explore
from tests.model.size import World
from tests.model.worlds import WORLDS


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_nothing_goes_wrong(world: World) -> None:
    found = explore(world)
    assert found.flaw is None, found.flaw
    missed = [what for what in world.reaches if not found.seen[what]]
    assert not missed, f"{world.name} proves nothing about {missed}: {dict(found.seen)}"
