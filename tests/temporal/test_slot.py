"""Slot mode in workflow code: entering, leaving, losing; beside the guide's holders; replayed."""

import asyncio
import re
import sys

import pytest
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from dibs.temporal.errors import Misused
from dibs.temporal.options import PermitPool
from dibs.temporal.permit import may_run_on
from dibs.temporal.semaphore import Semaphore
from dibs.temporal.slots import acquire as slot_acquiring
from dibs.temporal.slots import permit as slot_permit
from dibs.temporal.slots.permit import SlotPermit
from tests.servers.temporal import TemporalServer
from tests.temporal.slot_workflows import Curious, Held, Holder, Interrupted
from tests.temporal.slot_world import SlotWorld, overlap
from tests.temporal.workers import (
    count,
    history_of,
    kinds,
    replay,
    reset_to,
    status_of,
    unique,
    until,
    until_closed,
)

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]


async def test_the_guide_s_holders_and_ours_exclude_each_other(world: SlotWorld) -> None:
    resource = unique("slots")
    handles = [
        await world.hold(world.spec(way, resource, hold=0.2, acquire={"backoff": 0.2}))
        for way in ("guide", "ours") * 2
    ]
    helds = await asyncio.gather(*(handle.result() for handle in handles))
    assert overlap([(each.entered, each.left) for each in helds]) <= 0


async def test_our_holder_takes_a_permit_that_the_guide_s_worker_serves(world: SlotWorld) -> None:
    """It can't report or be renewed, and stands for its lease."""
    spec = world.spec(queue=world.guides, semaphore={"armed": False}, acquire={"auto_renew": False})
    held = await (await world.hold(spec)).result()
    assert held.token is None
    assert await world.permit(spec).result() == "released"


async def test_the_guide_s_holder_takes_a_permit_that_our_worker_serves(world: SlotWorld) -> None:
    spec = world.spec("guide", queue=world.permits, work="gate")
    handle = await world.hold(spec)
    await world.until_inside(handle)
    assert await world.permit_status(spec) == "RUNNING"
    await handle.signal("go")
    await handle.result()


async def test_as_many_as_there_are_slots(world: SlotWorld) -> None:
    resource = unique("slots")
    handles = [
        await world.hold(
            world.spec("ours", resource, capacity=2, hold=0.3, acquire={"backoff": 0.2})
        )
        for _ in range(4)
    ]
    helds: list[Held] = await asyncio.gather(*(handle.result() for handle in handles))
    assert {each.slot for each in helds} == {"0", "1"}
    for slot in "01":
        assert overlap([(each.entered, each.left) for each in helds if each.slot == slot]) <= 0


async def test_blocks_and_bare_permits(world: SlotWorld) -> None:
    inside = await (await world.start(Curious, world.spec(), "lock_block")).result()
    slot, index, lost, has_time, error, grows, remaining, shown = inside
    assert (slot, index, lost, has_time, error, grows, remaining) == (
        "0", 0, False, True, "NotHolding", True, 0.0,
    )  # fmt: skip
    assert shown.endswith(":0, released>")
    longer, short, *released = await (await world.start(Curious, world.spec(), "bare")).result()
    assert (longer, released) == (True, [True, False])
    assert re.search(
        r" has \d+ s left, and 60 min are needed: renew it first", short
    )  # it isn't lost


async def test_tasks_of_one_workflow_take_turns_without_asking_the_server(world: SlotWorld) -> None:
    handle = await world.start(Curious, world.spec(), "many")
    assert await handle.result() == [[0, 1, 2, 3], 1]
    history = await history_of(world.client, handle.id)
    assert count(history)["START_CHILD_WORKFLOW_EXECUTION_FAILED"] == 0


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("own", ["lost: expired", "its own"]),
        ("silent", ["swallowed", "expired", "0"]),
    ],
)
async def test_a_loss_hides_nothing_and_leaves_nothing(
    world: SlotWorld, how: str, seen: list[str]
) -> None:
    spec = world.spec(work="gate", acquire={"ttl": 1.0, "auto_renew": False})
    found = await (await world.start(Interrupted, spec, how)).result()
    assert found[: len(seen)] == seen
    if how == "own":
        assert "was lost" in found[-1]  # as a note to the body's own exception


async def test_a_loss_during_an_activity_is_a_loss_and_no_cancellation(world: SlotWorld) -> None:
    spec = world.spec(work="busy", hold=2.0, acquire={"ttl": 1.0, "auto_renew": False})
    handle = await world.hold(spec)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert getattr(caught.value.cause, "type", "") == "LeaseLost"


async def test_cancelled_while_it_holds(world: SlotWorld) -> None:
    spec = world.spec(work="gate")
    handle = await world.hold(spec)
    await world.until_inside(handle)
    await handle.cancel()
    assert await until_closed(world.client, handle.id) == "CANCELED"
    assert await world.permit(spec).result() == "released"


async def test_renewed_for_longer_than_its_ttl_and_no_longer_than_max_hold(
    world: SlotWorld,
) -> None:
    spec = world.spec(work="gate", acquire={"ttl": 3.0, "max_hold": 5.0})
    handle = await world.hold(spec)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert "as long as max_hold allows" in str(caught.value.cause)
    history = await history_of(world.client, handle.id)
    assert count(history)["SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"] >= 2
    await replay(history, Holder, sandboxed=False)


async def test_a_renewal_that_hangs_ends_with_the_deadline(
    world: SlotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(self: SlotPermit, ttl: float) -> bool:
        return bool(await asyncio.get_running_loop().create_future())

    monkeypatch.setattr(SlotPermit, "_extend", hangs)
    spec = world.spec(work="gate", acquire={"ttl": 3.0})
    handle = await world.hold(spec)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert "no renewal came in time" in str(caught.value.cause)
    assert await world.permit(spec).result() == "lease_expired"


def report_late(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the first permit the holder hears when its lease would be over; the run IDs of all."""
    really = slot_permit.wait_until_armed
    runs: list[str] = []

    async def late(permit: SlotPermit, bound: float, pool: PermitPool, *, until: float) -> None:
        await really(permit, bound, pool, until=until)
        if permit.run_id not in runs:
            runs.append(permit.run_id)
        if len(runs) == 1:
            monkeypatch.setattr(permit, "_deadline", workflow.time())

    monkeypatch.setattr(slot_acquiring, "wait_until_armed", late)
    return runs


async def test_a_permit_whose_report_came_late_is_held_as_long_as_it_stands(
    world: SlotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would ever have one where each step takes long."""
    runs = report_late(monkeypatch)
    handle = await world.hold(world.spec(acquire={"ttl": 300.0}))
    assert (await handle.result()).run_id == runs[0]
    await replay(await history_of(world.client, handle.id), Holder, sandboxed=False)


async def test_one_that_is_gone_by_then_is_given_back_and_another_acquired(
    world: SlotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = report_late(monkeypatch)

    async def gone(self: SlotPermit, ttl: float) -> bool:
        return False

    monkeypatch.setattr(SlotPermit, "_extend", gone)
    handle = await world.hold(world.spec(acquire={"ttl": 300.0, "backoff": 0.1}))
    assert (await handle.result()).run_id not in ("", runs[0])


async def test_the_server_leaves_a_permit_its_quarantine(world: SlotWorld) -> None:
    spec = world.spec(acquire={"max_hold": 100.0}, semaphore={"quarantine": 500.0})
    await (await world.hold(spec)).result()
    history = await history_of(world.client, world.permit(spec).id)
    begun = history.events[0].workflow_execution_started_event_attributes
    assert begun.workflow_execution_timeout.seconds > 600


async def test_a_permit_that_can_t_speak_has_no_quarantine() -> None:
    with pytest.raises(ValueError, match="quarantine= needs armed=True"):
        Semaphore("x", capacity=1, quarantine=3, armed=False)


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (None, False),
        (TimeoutError(), True),
        (ExceptionGroup("", [ApplicationError("sibling")]), True),
        (asyncio.CancelledError(), True),
        (Misused("no name"), False),
    ],
)
async def test_a_body_that_failed_may_have_left_work_behind(
    error: BaseException | None, may: bool
) -> None:
    assert may_run_on(error) is may


async def test_in_the_sandbox_and_replayed_from_its_history_for_each_task(
    temporal_server: TemporalServer,
) -> None:
    """Nothing is passed through the sandbox, and nothing is kept between tasks."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.temporal.sandboxed", temporal_server.address,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await program.communicate()
    assert program.returncode == 0
    assert said.decode().strip() == "released"


async def test_a_replay_does_not_look_at_the_queue(
    world: SlotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", world.permits)
    spec = world.spec()
    assert Semaphore("x", capacity=1).task_queue == world.permits
    handle = await world.start(Curious, spec, "from_the_environment")
    await handle.result()
    monkeypatch.delenv("TEMPORAL_TASK_QUEUE")
    await replay(await history_of(world.client, handle.id), Curious, sandboxed=False)


@pytest.mark.parametrize("close", ["safe", "fast"])
async def test_reset_to_before_its_acquire_meets_its_own_permit_and_waits_for_it(
    world: SlotWorld, close: str
) -> None:
    spec = world.spec(
        work="gate", acquire={"ttl": 3.0, "backoff": 0.3}, semaphore={"on_holder_close": close}
    )
    handle = await world.hold(spec)
    await world.until_inside(handle)
    first = await world.permit(spec).describe()
    run_id = await reset_to(world.client, handle.id, handle.first_execution_run_id or "", 4)
    again = world.client.get_workflow_handle(handle.id, run_id=run_id, result_type=Held)
    await again.signal("go")
    held = await again.result()
    assert held.run_id != first.run_id
    assert await status_of(world.client, first.id, first.run_id) in ("COMPLETED", "TERMINATED")
    ended = await world.client.get_workflow_handle(first.id, run_id=first.run_id).describe()
    assert ended.close_time is not None
    assert ended.close_time.timestamp() <= held.entered


async def test_outside_of_a_workflow_it_names_the_right_class(world: SlotWorld) -> None:
    with pytest.raises(ValueError, match=r"elsewhere use dibs\.Semaphore"):
        async with Semaphore("x", capacity=1).acquire():
            pass


@pytest.mark.parametrize("close", ["safe", "fast"])
async def test_reset_to_after_its_acquire_it_is_never_held_by_two(
    world: SlotWorld, close: str
) -> None:
    """The new run holds what the old run had, or learns that it doesn't."""
    spec = world.spec(
        work="gate", acquire={"ttl": 4.0, "backoff": 0.3}, semaphore={"on_holder_close": close}
    )
    handle = await world.hold(spec)
    await world.until_inside(handle)
    history = await history_of(world.client, handle.id)
    signaled = kinds(history).index("WORKFLOW_EXECUTION_SIGNALED")
    after = kinds(history).index("WORKFLOW_TASK_COMPLETED", signaled) + 1
    run_id = await reset_to(world.client, handle.id, handle.first_execution_run_id or "", after)
    again = world.client.get_workflow_handle(handle.id, run_id=run_id, result_type=Held)
    other = await world.hold(world.spec("ours", spec.resource, acquire={"backoff": 0.3}))

    async def renewed_or_told() -> bool:
        found = count(await history_of(world.client, handle.id, run_id))
        renewals = found["SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"]
        return bool(renewals or found["WORKFLOW_EXECUTION_FAILED"])

    await until(renewed_or_told)
    await again.signal("go")
    try:
        mine = await again.result()
    except WorkflowFailureError as error:
        if getattr(error.cause, "type", "") != "LeaseLost":
            raise
        await other.result()
    else:
        theirs = await other.result()
        assert overlap([(mine.entered, mine.left), (theirs.entered, theirs.left)]) <= 0
