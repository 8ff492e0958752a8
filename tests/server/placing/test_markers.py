"""Markers that servers leave in the stores."""

from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from dibs.errors import BackendUnavailable
from dibs.hub import Hub, hub_for
from dibs.model import Command
from dibs.server.placing.markers import Markers
from tests.runtime.stores import TappedStore


def away(_: Sequence[Command]) -> None:
    raise BackendUnavailable("away")


@pytest.fixture
async def hubs() -> AsyncIterator[tuple[Hub, Hub]]:
    """One store that is well, and one that is not."""
    well, ill = hub_for(f"memory://{uuid4()}"), Hub(broken := TappedStore(turns=1))
    broken.before = away
    yield well, ill
    for hub in (well, ill):
        await hub.close_loop()
        hub.close()


async def test_a_marker_is_found_while_another_store_is_away(hubs: tuple[Hub, Hub]) -> None:
    well, ill = (hub.loop_runtime() for hub in hubs)
    await Markers(lambda: (well,)).put("moved")
    assert await Markers(lambda: (ill, well)).standing(["moved", "other"]) == {"moved"}


async def test_without_any_store_nobody_knows(hubs: tuple[Hub, Hub]) -> None:
    _, ill = (hub.loop_runtime() for hub in hubs)
    with pytest.raises(BackendUnavailable):
        await Markers(lambda: (ill,)).standing(["moved"])


async def test_a_marker_must_be_in_all_stores(hubs: tuple[Hub, Hub]) -> None:
    well, ill = (hub.loop_runtime() for hub in hubs)
    with pytest.raises(BackendUnavailable):
        await Markers(lambda: (well, ill)).put("moved")
    assert await Markers(lambda: (well,)).standing(["moved"]) == {"moved"}
