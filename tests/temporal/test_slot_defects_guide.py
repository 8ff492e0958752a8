"""Defects 10, 16 and 20 of the guide's permits: its way; ours is elsewhere. Numbers as in the notes."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import WorkflowHandle
from temporalio.exceptions import WorkflowAlreadyStartedError

import dibs
from tests.servers.temporal import TemporalServer
from tests.temporal.fair_flows import Holding
from tests.temporal.fair_world import fair_world
from tests.temporal.guide import GuidePermit, GuidePermitInput, GuideSemaphore
from tests.temporal.histories import count, history_of
from tests.temporal.slot_workflows import Spec
from tests.temporal.slot_world import SlotWorld, slot_world
from tests.temporal.workers import status_of, unique, until, until_closed, worker

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(temporal_server: TemporalServer) -> AsyncIterator[SlotWorld]:
    async with slot_world(temporal_server) as found:
        yield found


@workflow.defn
class Nested:
    """Acquires twice what there is one of."""

    @workflow.run
    async def run(self, resource: str, queue: str) -> None:
        guide = GuideSemaphore(resource, capacity=1, task_queue=queue)
        lease, backoff = timedelta(seconds=30), timedelta(milliseconds=50)
        async with guide.acquire(lease=lease, backoff=backoff):
            async with guide.acquire(lease=lease, backoff=backoff):
                raise AssertionError("it has both")


async def until_it_has_paused(world: SlotWorld, workflow_id: str) -> None:
    """Five times, and it goes on."""

    async def often() -> bool:
        return count(await history_of(world.client, workflow_id))["TIMER_FIRED"] >= 5

    await until(often)
    assert await status_of(world.client, workflow_id) == "RUNNING"


async def test_10_the_guide_s_waiter_waits_for_itself(world: SlotWorld) -> None:
    """Ours: `test_10_waiting_for_oneself_is_an_error_at_once`."""
    async with worker(world.client, Nested, sandboxed=False) as queue:
        handle = await world.client.start_workflow(
            Nested.run, args=[unique("slots"), world.guides], id=unique("nested"), task_queue=queue
        )
        await until_it_has_paused(world, handle.id)
        await handle.cancel()  # so it leaves its block, which a terminated one doesn't
        assert await until_closed(world.client, handle.id) == "CANCELED"


async def test_10_the_guide_s_waiter_has_no_end(world: SlotWorld) -> None:
    """Nor a try without waiting. Ours: `test_10_an_acquire_ends_after_its_wait`."""
    held = world.spec("guide", work="gate")
    holder = await world.hold(held)
    await world.until_inside(holder)
    late = await world.hold(world.spec("guide", held.resource, acquire={"backoff": 0.05}))
    await until_it_has_paused(world, late.id)
    await late.terminate()
    await holder.signal("go")
    await holder.result()


@pytest.mark.parametrize("wrong", ["name", "capacity"])
async def test_16_the_guide_s_wrong_arguments_are_no_errors(world: SlotWorld, wrong: str) -> None:
    """Its workflow goes on for ever. Ours: `test_16_names_and_arguments_that_make_no_sense_…`."""
    spec = world.spec("guide", acquire={"backoff": 0.05})
    if wrong == "name":
        spec.resource = "x" * 2000
    else:
        spec.capacity = 0
    handle = await world.hold(spec)
    if wrong == "capacity":
        await until_it_has_paused(world, handle.id)
    else:

        async def refused() -> bool:
            history = await history_of(world.client, handle.id)
            return count(history)["WORKFLOW_TASK_FAILED"] > 0

        await until(refused)
        assert await status_of(world.client, handle.id) == "RUNNING"
    await handle.terminate()


async def test_20_the_guide_s_permit_taken_by_a_plain_client(world: SlotWorld) -> None:
    """By hand, as it has nothing for them. Released late, it is the next holder's that ends."""
    spec = world.spec("guide", work="gate", acquire={"ttl": 30.0})
    mine = await take(world, spec)
    await until_closed(world.client, mine.id)  # its lease is over
    next_one = await world.hold(spec)
    await world.until_inside(next_one)
    with pytest.raises(WorkflowAlreadyStartedError):
        await take(world, spec)
    await mine.signal("release")
    await until_closed(world.client, mine.id)
    await take(world, spec)  # while the holder believes that it has it
    assert await status_of(world.client, next_one.id) == "RUNNING"
    await next_one.signal("go")
    await next_one.result()


async def take(world: SlotWorld, spec: Spec) -> WorkflowHandle[GuidePermit, str]:
    """For a second."""
    return await world.client.start_workflow(
        GuidePermit.run,
        GuidePermitInput(spec.resource, "0", 1.0),
        id=world.permit(spec).id,
        task_queue=spec.queue,
        execution_timeout=timedelta(seconds=1),
    )


async def test_20_ours_released_late_is_nobody_else_s(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        url = f"{temporal_server.url}?task_queue={world.queue}"
        async with dibs.connect(url) as client:
            lease = await client.semaphore(world.resource, 1, ttl="1s", auto_renew=False).acquire()
            next_one = await world.holding()  # once its lease is over
            assert lease.lost
            await lease.release()
            (holder,) = (await world.status()).holders
            assert holder.owner.startswith(next_one.id)
            await next_one.signal(Holding.leave)
            await next_one.result()
