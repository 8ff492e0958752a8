"""Defects of the guide's permits that a broker has not: its way, and ours. Numbers as in the notes."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.servers.temporal import TemporalServer
from tests.temporal.fair_flows import Holding
from tests.temporal.fair_world import fair_world
from tests.temporal.histories import history_of, kinds
from tests.temporal.slot_world import SlotWorld, slot_world
from tests.temporal.workers import status_of, until

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guides(temporal_server: TemporalServer) -> AsyncIterator[SlotWorld]:
    async with slot_world(temporal_server) as found:
        yield found


async def test_11_the_guide_s_waiter_is_overtaken_while_it_pauses(guides: SlotWorld) -> None:
    spec = guides.spec("guide", work="gate")
    first = await guides.hold(spec)
    await guides.until_inside(first)
    patient = await guides.hold(guides.spec("guide", spec.resource, acquire={"backoff": 60.0}))

    async def pauses() -> bool:
        return "TIMER_STARTED" in kinds(await history_of(guides.client, patient.id))

    await until(pauses)
    await first.signal("go")
    await first.result()
    late = await guides.hold(guides.spec("guide", spec.resource, hold=0.0))
    await late.result()
    assert await status_of(guides.client, patient.id) == "RUNNING"
    await patient.terminate()


async def test_11_ours_is_served_when_its_turn_comes(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        first = await world.holding()
        patient = await world.waiting(hold=0)
        late = await world.waiting(hold=0)
        await first.signal(Holding.leave)
        assert (await patient.result()).until <= (await late.result()).since


async def test_13_the_guide_s_capacity_is_each_caller_s_own(guides: SlotWorld) -> None:
    """Who says 1 enters while somebody who says 2 is in slot 1."""
    two = guides.spec("guide", capacity=2, work="gate")
    holders = [await guides.hold(two) for _ in range(2)]
    for holder in holders:
        await guides.until_inside(holder)
    await guides.permit(two, 0).signal("release")
    one = await guides.hold(guides.spec("guide", two.resource, hold=0.0))
    assert (await one.result()).slot == "0"
    assert await guides.permit_status(two, 1) == "RUNNING"
    for holder in holders:
        await holder.signal("go")
        await holder.result()


async def test_13_a_broker_s_is_one_for_all(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        first = await world.holding(capacity=2)
        second = await world.holding(capacity=2)
        await first.signal(Holding.leave)
        assert (await first.result()).slots == ["0"]
        narrow = await world.waiting(capacity=1, hold=0)
        await second.signal(Holding.leave)
        assert (await second.result()).until <= (await narrow.result()).since
