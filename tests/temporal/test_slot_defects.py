"""What permits after Temporal's guide got wrong, and ours do not."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from dibs.temporal.slots.workflow import PermitSlotWorkflow
from tests.temporal.slot_workflows import Curious, Held, Interrupted, Relay, TwoTasks
from tests.temporal.slot_world import SlotWorld, overlap
from tests.temporal.workers import history_of, kinds, status_of, unique, until, until_closed, worker

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]


async def test_1_a_late_release_leaves_another_task_s_permit_alone(world: SlotWorld) -> None:
    spec = world.spec(acquire={"ttl": 1.0, "auto_renew": False, "backoff": 0.3})
    handle = await world.start(TwoTasks, spec)

    async def first_has_left() -> bool:
        return "the first has left" in await handle.query("log")

    await until(first_has_left)
    second = world.permit(spec)
    assert not await world.was_told(second, "release")
    await handle.signal("go")
    await handle.result()
    assert await second.result() == "released"


async def test_2_an_expired_lease_ends_its_permit_as_such(world: SlotWorld) -> None:
    spec = world.spec(hold=60.0, acquire={"ttl": 4.0})
    holder = await world.hold(spec)
    await world.until_inside(holder)
    await holder.terminate()  # so nobody renews or releases it
    assert await world.permit(spec).result() == "lease_expired"


async def test_3_a_released_permit_has_ended_as_released(world: SlotWorld) -> None:
    """The permits' worker is away while the holder releases and returns."""
    queue = unique("queue")
    spec = world.spec(queue=queue, work="gate", semaphore={"on_holder_close": "fast"})
    async with worker(world.client, PermitSlotWorkflow, queue=queue, sandboxed=False):
        handle = await world.hold(spec)
        await world.until_inside(handle)
    await handle.signal("go")

    async def released() -> bool:
        found = kinds(await history_of(world.client, handle.id))
        return "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED" in found

    await until(released)
    async with worker(world.client, PermitSlotWorkflow, queue=queue, sandboxed=False):
        await handle.result()
        assert await until_closed(world.client, world.permit(spec).id) == "COMPLETED"


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_4_a_holder_whose_permit_is_ended_learns_of_it(world: SlotWorld, how: str) -> None:
    spec = world.spec(work="gate")
    handle = await world.hold(spec)
    await world.until_inside(handle)
    await getattr(world.permit(spec), how)()
    await until_closed(world.client, world.permit(spec).id)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("LeaseLost", True)
    assert f"{spec.resource}:0" in cause.message
    done = {"terminate": "terminated", "cancel": "cancelled"}[how]
    assert f"was lost: somebody has {done} its workflow" in cause.message


async def test_4_a_holder_learns_that_its_lease_has_ended(world: SlotWorld) -> None:
    """And before the permit itself ends, so that nobody else has the slot by then."""
    spec = world.spec(work="gate", acquire={"ttl": 1.5, "auto_renew": False})
    handle = await world.hold(spec)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert "no renewal came in time" in str(caught.value.cause)
    assert await world.permit(spec).result() == "lease_expired"


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_5_work_of_an_ended_holder_has_ended_before_the_next_begins(
    world: SlotWorld, how: str
) -> None:
    spec = world.spec(work="busy", hold=1.5, semaphore={"quarantine": 3.0})
    first = await world.hold(spec)
    await world.until_inside(first)
    next_one = await world.hold(replace(spec, hold=0.1))
    await until(lambda: _begun(world, first.id))
    await getattr(first, how)()
    await next_one.result()
    assert overlap(await world.work.spans_when_done(first.id, next_one.id)) <= 0


async def test_5_fast_frees_at_once_what_a_terminated_holder_had(world: SlotWorld) -> None:
    spec = world.spec(work="gate", semaphore={"on_holder_close": "fast"})
    first = await world.hold(spec)
    await world.until_inside(first)
    await first.terminate()
    assert await until_closed(world.client, world.permit(spec).id) == "TERMINATED"


async def test_6_a_holder_cancelled_while_it_acquires_leaves_nothing_behind(
    world: SlotWorld,
) -> None:
    specs = [world.spec(work="gate") for _ in range(12)]
    handles = await asyncio.gather(*map(world.hold, specs))
    for number, handle in enumerate(handles):
        await asyncio.sleep(0.004 * number)
        await handle.cancel()
    for handle, spec in zip(handles, specs, strict=True):
        assert await until_closed(world.client, handle.id) == "CANCELED"
        assert await _ended_or_never(world, spec)


async def test_7_a_second_cancellation_does_not_stop_the_release(world: SlotWorld) -> None:
    spec = world.spec(work="gate", acquire={"ttl": 30.0})
    handle = await world.start(Interrupted, spec, "twice")
    seen = await handle.result()
    assert seen[0] == "cancelled"
    outcomes = await world.outcomes(handle)
    assert outcomes == ["COMPLETED"]
    assert seen[1] == "CancelledError"
    assert await world.permit(spec).result() == "released"


@pytest.mark.parametrize(
    ("how", "seen"),
    [("sibling", ["cancelled", "sibling"]), ("timeout", ["cancelled", "timed out"])],
)
async def test_7_others_cancellations_pass_and_the_permit_is_released(
    world: SlotWorld, how: str, seen: list[str]
) -> None:
    spec = world.spec(work="gate")
    handle = await world.start(Interrupted, spec, how)
    assert await handle.result() == seen
    assert await world.permit(spec).result() == "released"


async def test_8_a_permit_is_handed_over_a_continue_as_new(world: SlotWorld) -> None:
    often = {"backoff": 0.2, "max_backoff": 0.5, "ttl": 60.0}
    spec = world.spec(runs=2, gap=True, work="gate", acquire=often)
    relay = await world.start(Relay, spec, result=Held)
    await world.until_inside(relay)
    other = await world.hold(world.spec(resource=spec.resource, acquire=often))
    await relay.signal("go")
    await until(lambda: _continued(relay))
    tried = await world.tries(other)
    await until(lambda: _has_tried(world, other, tried + 3))
    await relay.signal("go")
    helds: list[Held] = await asyncio.gather(relay.result(), other.result())
    assert overlap([(each.entered, each.left) for each in helds]) <= 0


async def test_8_its_quarantine_does_not_begin_by_the_hand_over(world: SlotWorld) -> None:
    """The end of the run that has started it cancels it, before the next run adopts it or after."""
    specs = [
        world.spec(runs=3, hold=0.05, acquire={"ttl": 8.0}, semaphore={"quarantine": 60.0})
        for _ in range(4)
    ]
    relays = [await world.start(Relay, spec, result=Held) for spec in specs]
    for relay, spec in zip(relays, specs, strict=True):
        await relay.result()
        assert await world.permit(spec).result() == "released"
        found = kinds(await history_of(world.client, world.permit(spec).id))
        assert "WORKFLOW_EXECUTION_CANCEL_REQUESTED" in found


async def test_8_handed_over_it_still_ends_at_its_max_hold(world: SlotWorld) -> None:
    """Also where nobody renews it: its holder stops before the permit does."""
    ttl_and_hold = {"ttl": 15.0, "max_hold": 3.0, "auto_renew": False}
    spec = world.spec(runs=2, hold=1.5, acquire=ttl_and_hold)
    relay = await world.start(Relay, spec, result=Held)
    with pytest.raises(WorkflowFailureError) as caught:
        await relay.result()
    assert "as long as max_hold allows" in str(caught.value.cause)
    assert re.search(r"held for [2-9] s", str(caught.value.cause))  # by both runs
    assert await world.permit(spec).result() == "lease_expired"


async def test_8_a_fast_permit_can_t_be_handed_over_and_says_so(world: SlotWorld) -> None:
    spec = world.spec(runs=2, hold=0.01, semaphore={"on_holder_close": "fast"})
    relay = await world.start(Relay, spec, result=Held)
    with pytest.raises(WorkflowFailureError) as caught:
        await relay.result()
    assert 'take on_holder_close="safe"' in str(caught.value.cause)


async def test_10_waiting_for_oneself_is_an_error_at_once(world: SlotWorld) -> None:
    handle = await world.start(Curious, world.spec(acquire={"ttl": 30.0}), "nested")
    kind, said, again = await handle.result()
    assert kind == "AlreadyHeld"
    assert "this task holds every slot" in said
    assert again is None


async def test_10_an_acquire_ends_after_its_wait(world: SlotWorld) -> None:
    spec = world.spec(work="gate")
    holder = await world.hold(spec)
    await world.until_inside(holder)
    for wait in (0, 0.7):
        late = await world.hold(world.spec("ours", spec.resource, acquire={"wait": wait}))
        with pytest.raises(WorkflowFailureError) as caught:
            await late.result()
        cause = caught.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "AcquireTimeout"
        assert f"permit:{spec.resource}:0" in cause.message
    await holder.signal("go")
    await holder.result()


async def test_12_tokens_of_a_slot_grow(world: SlotWorld) -> None:
    spec = world.spec(hold=0.01)
    tokens = [(await (await world.hold(spec)).result()).token for _ in range(3)]
    assert all(token for token in tokens)
    assert tokens == sorted(set(tokens), key=lambda token: token or 0)


async def test_14_nobody_serves_the_permits(world: SlotWorld) -> None:
    ours = world.spec(
        queue=unique("nowhere"), acquire={"wait": 0.1}, semaphore={"on_holder_close": "fast"}
    )
    unknown = world.spec(  # a worker is there, and does not know the type
        queue=world.holders, acquire={"wait": 0.1}, semaphore={"on_holder_close": "fast"}
    )
    handles = await asyncio.gather(*map(world.hold, (ours, unknown)))
    for handle, spec in zip(handles, (ours, unknown), strict=True):
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        said = str(caught.value.cause)
        assert f"nobody serves the task queue '{spec.queue}'" in said
        mend = "PermitSlotWorkflow" if spec is unknown else "dibs temporal worker"
        assert mend in said
        assert (
            f"`temporal workflow terminate --workflow-id {world.permit(spec).id}` frees it" in said
        )
        assert await until_closed(world.client, world.permit(spec).id) == "TERMINATED"


async def test_15_a_second_attempt_is_covered_as_well(world: SlotWorld) -> None:
    spec = world.spec(attempts=2, acquire={"ttl": 4.0, "backoff": 0.2}, work="flaky", hold=2.4)
    first = await world.hold(spec)
    await world.until_inside(first)
    quick = {"backoff": 0.2}
    next_one = await world.hold(world.spec(resource=spec.resource, work="busy", acquire=quick))
    await asyncio.gather(first.result(), next_one.result())
    spans = world.work.spans_of(first.id, next_one.id)
    assert len(spans) == 3
    assert overlap(spans) <= 0


async def test_16_names_and_arguments_that_make_no_sense_fail_the_workflow(
    world: SlotWorld,
) -> None:
    """They don't repeat its task for ever."""
    said = await (await world.start(Curious, world.spec(), "wrong")).result()
    assert len(said) == 11
    assert any("255 bytes" in each for each in said)
    assert said[-1].endswith("need fair=True: without a broker a permit is one slot")
    with pytest.raises(WorkflowFailureError) as caught:
        await (await world.start(Curious, world.spec(), "uncaught")).result()
    assert "capacity is -1" in str(caught.value.cause)


async def _begun(world: SlotWorld, who: str) -> bool:
    return who in world.work.begun


async def _continued(relay: WorkflowHandle[Any, Any]) -> bool:
    """Its next run has begun."""
    return (await relay.describe()).run_id != relay.first_execution_run_id


async def _has_tried(world: SlotWorld, waiter: WorkflowHandle[Any, Any], times: int) -> bool:
    return await world.tries(waiter) >= times


async def _ended_or_never(world: SlotWorld, spec: Any) -> bool:
    status = await status_of(world.client, world.permit(spec).id)
    return status == "" or await until_closed(world.client, world.permit(spec).id) == "COMPLETED"
