"""Slot mode: what it promises by itself, and beside the guide's holders."""

import asyncio
import re
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment

from dibs.stores.temporal import ids
from dibs.temporal import PermitSlotWorkflow, options
from dibs.temporal.options import PermitPool
from dibs.temporal.semaphore import Semaphore
from dibs.temporal.slots import acquire as slot_acquiring
from dibs.temporal.slots import permit as slot_permit
from dibs.temporal.slots.permit import SlotPermit
from dibs.temporal.slots.workflow import PermitSlotInput
from tests.servers.binaries import temporal_program
from tests.temporal.permit_flows import Held, Holding, Relay, Several, Wish, Wrong
from tests.temporal.permit_world import Handle, World, overlap, spans_of
from tests.temporal.workers import (
    count,
    failure_of,
    kinds,
    poll,
    replay,
    reset_to,
    status_of,
    unique,
    until_closed,
    until_event,
    worker,
)

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]

FAST = {"on_holder_close": "fast"}


# -- beside the guide ------------------------------------------------------------------------------


async def test_the_guide_s_holders_and_ours_exclude_each_other(world: World) -> None:
    resource = unique("resource")
    handles = [
        await world.hold(world.wish(mode, resource=resource, hold=0.2))
        for mode in ("guide", "slot") * 2
    ]
    helds = await asyncio.gather(*(handle.result() for handle in handles))
    assert overlap(*spans_of(helds)) <= 0


async def test_our_holder_takes_a_permit_that_the_guide_s_worker_serves(world: World) -> None:
    """It can't report or be renewed, and stands for its lease."""
    wish = world.wish("slot", hold=0.1, queue=world.guides, semaphore={"armed": False})
    held = await (await world.hold(replace(wish, acquire={"auto_renew": False}))).result()
    assert held.token is None
    assert await world.permit(wish).result() == "released"


async def test_the_guide_s_holder_takes_a_permit_that_our_worker_serves(world: World) -> None:
    wish = world.wish("guide", queue=world.queue)
    holder = await world.holding(wish)
    assert await status_of(world.client, world.permit(wish).id) == "RUNNING"
    await holder.signal("leave")
    await holder.result()
    assert await world.permit(wish).result() == "released"


# -- tasks of one workflow -------------------------------------------------------------------------


async def test_a_slot_that_a_task_gives_back_is_tried_by_the_next_without_a_pause(
    world: World,
) -> None:
    """Another workflow holds the other slot, so they do not know all of the holders."""
    wish = world.wish("slot", capacity=2, acquire={"backoff": 60.0})
    holder = await world.holding(wish)
    tasks = await world.start(Several, replace(wish, hold=0), 2, result=list[Held])
    first, second = await tasks.result()
    assert first.slots == second.slots
    assert "TIMER_FIRED" not in kinds(await tasks.fetch_history())
    await holder.signal("leave")
    await holder.result()


# -- the end of a permit and of its holder ---------------------------------------------------------


async def test_1_a_late_release_leaves_another_task_s_permit_alone(world: World) -> None:
    """A run that took a permit over does not learn of its end before the next renewal."""
    wish = world.wish("slot", runs=2, acquire={"ttl": 60.0})
    relay = await world.holding(wish, Relay)
    await relay.signal("leave")
    await world.until_next_run_holds(relay, relay.first_execution_run_id)
    await world.permit(wish).terminate()
    holder = await world.holding(wish)
    await world.client.get_workflow_handle(relay.id).signal("leave")
    await relay.result()
    history = await world.permit(wish).fetch_history()
    assert "WORKFLOW_EXECUTION_SIGNALED" not in kinds(history)
    await holder.signal("leave")
    await holder.result()


async def test_3_a_released_permit_has_ended_as_released(world: World) -> None:
    """The permits' worker is away while the holder releases and returns."""
    wish = world.wish("slot", queue=unique("queue"), semaphore=FAST)

    def served() -> AbstractAsyncContextManager[str]:
        return worker(world.client, PermitSlotWorkflow, queue=wish.queue, sandboxed=False)

    async with served():
        holder = await world.holding(wish)
    await holder.signal("leave")
    await until_event(holder, "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED")
    async with served():
        await holder.result()
        assert await until_closed(world.client, world.permit(wish).id) == "COMPLETED"


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_4_a_holder_whose_permit_is_ended_learns_of_it(world: World, how: str) -> None:
    wish = world.wish("slot")
    holder = await world.holding(wish)
    await getattr(world.permit(wish), how)()
    failure = await failure_of(holder)
    assert (failure.type, failure.non_retryable) == ("LeaseLost", True)
    assert f"{wish.resource}:0" in failure.message
    done = {"terminate": "terminated", "cancel": "cancelled"}[how]
    assert f"was lost: somebody has {done} its workflow" in failure.message


async def test_fast_frees_at_once_what_a_terminated_holder_had(world: World) -> None:
    wish = world.wish("slot", semaphore=FAST)
    holder = await world.holding(wish)
    await holder.terminate()
    assert await until_closed(world.client, world.permit(wish).id) == "TERMINATED"


async def test_a_fast_permit_can_t_be_handed_over(world: World) -> None:
    wish = world.wish("slot", runs=2, hold=0.01, semaphore=FAST)
    failure = await failure_of(await world.start(Relay, wish))
    assert 'take on_holder_close="safe"' in failure.message


async def test_8_a_permit_is_handed_over_a_continue_as_new(world: World) -> None:
    wish = world.wish("slot", runs=2, acquire={"max_backoff": 0.5, "ttl": 60.0})
    relay = await world.holding(wish, Relay)
    other = await world.hold(replace(wish, hold=0))
    await relay.signal("leave")
    await world.until_next_run_holds(relay, relay.first_execution_run_id)
    await world.until_tried(other, 3 + await world.until_tried(other))
    await world.client.get_workflow_handle(relay.id).signal("leave")
    helds = await asyncio.gather(relay.result(), other.result())
    assert overlap(*spans_of(helds)) <= 0


async def test_a_hand_over_does_not_begin_the_quarantine(world: World) -> None:
    """The end of the run that started it cancels it, before the next run adopts it or after."""
    more = {"acquire": {"ttl": 8.0}, "semaphore": {"quarantine": 60.0}}
    wishes = [world.wish("slot", runs=3, hold=0.05, **more) for _ in range(4)]
    relays = [await world.start(Relay, wish) for wish in wishes]
    for relay, wish in zip(relays, wishes, strict=True):
        await relay.result()
        assert await world.permit(wish).result() == "released"
        history = await world.permit(wish).fetch_history()
        assert "WORKFLOW_EXECUTION_CANCEL_REQUESTED" in kinds(history)


async def test_a_permit_that_was_handed_over_still_ends_at_its_max_hold(world: World) -> None:
    """Also if it is not renewed: its holder stops before the permit does."""
    terms = {"ttl": 15.0, "max_hold": 3.0, "auto_renew": False}
    wish = world.wish("slot", runs=2, hold=1.5, acquire=terms)
    failure = await failure_of(await world.start(Relay, wish))
    assert "as long as max_hold allows" in failure.message
    assert re.search(r"held for [2-9] s", failure.message)  # by both runs
    assert await world.permit(wish).result() == "lease_expired"


async def test_a_permit_that_no_worker_serves_names_its_queue_and_frees_its_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "MIN_REPORT_TIMEOUT", 1.0)
    nobody = world.wish("slot", queue=unique("nowhere"), acquire={"wait": 0.1}, semaphore=FAST)
    unknown = replace(nobody, resource=unique(), queue=world.guides + "-other")
    async with worker(world.client, Holding, queue=unknown.queue, sandboxed=False):
        for wish, mend in ((nobody, "dibs temporal worker"), (unknown, "PermitSlotWorkflow")):
            failure = await failure_of(await world.hold(wish))
            permit = world.permit(wish).id
            assert f"nobody serves the task queue '{wish.queue}'" in failure.message
            assert mend in failure.message
            assert f"`temporal workflow terminate --workflow-id {permit}`" in failure.message
            assert await until_closed(world.client, permit) == "TERMINATED"


async def test_the_server_leaves_a_permit_its_quarantine(world: World) -> None:
    """A holder that released it needs none."""
    terms = {"acquire": {"max_hold": 100.0}, "semaphore": {"quarantine": 500.0}}
    wish = world.wish("slot", hold=0.1, **terms)
    await (await world.hold(wish)).result()
    assert await world.permit(wish).result() == "released"
    history = await world.permit(wish).fetch_history()
    begun = history.events[0].workflow_execution_started_event_attributes
    assert begun.workflow_execution_timeout.seconds > 600


async def test_a_replay_does_not_look_at_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", world.queue)
    assert Semaphore("x", capacity=1).task_queue == world.queue
    flow = await world.start(Wrong, unique("resource"), 1)
    await flow.result()
    monkeypatch.delenv("TEMPORAL_TASK_QUEUE")
    await replay(await flow.fetch_history(), Wrong)


@pytest.mark.parametrize("close", ["safe", "fast"])
async def test_reset_to_before_its_acquire_meets_its_own_permit_and_waits_for_it(
    world: World, close: str
) -> None:
    wish = world.wish("slot", acquire={"ttl": 3.0}, semaphore={"on_holder_close": close})
    holder = await world.holding(wish)
    first = await world.permit(wish).describe()
    again = await reset_to(world.client, holder, 4, Held)
    await again.signal("leave")
    held: Held = await again.result()
    assert held.run_id != first.run_id
    ended = await world.client.get_workflow_handle(first.id, run_id=first.run_id).describe()
    assert ended.close_time is not None
    assert ended.close_time.timestamp() <= held.since


# -- steps that take long, or fall together --------------------------------------------------------


async def test_a_renewal_that_hangs_ends_with_the_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(self: SlotPermit, ttl: float) -> bool:
        return bool(await asyncio.get_running_loop().create_future())

    monkeypatch.setattr(SlotPermit, "_extend", hangs)
    wish = world.wish("slot", acquire={"ttl": 3.0})
    failure = await failure_of(await world.hold(wish))
    assert "no renewal came in time" in failure.message
    assert await world.permit(wish).result() == "lease_expired"


@pytest.mark.parametrize("gone", [False, True])
async def test_a_permit_whose_report_came_late_is_held_while_it_stands_and_else_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """Else nobody would ever have one where each step takes long."""
    really = slot_permit.wait_until_armed
    runs: list[str] = []

    async def late(permit: SlotPermit, bound: float, pool: PermitPool, *, until: float) -> None:
        await really(permit, bound, pool, until=until)
        if permit.run_id not in runs:
            runs.append(permit.run_id)
        if len(runs) == 1:
            monkeypatch.setattr(permit, "_deadline", workflow.time())

    async def is_gone(self: SlotPermit, ttl: float) -> bool:
        return False

    monkeypatch.setattr(slot_acquiring, "wait_until_armed", late)
    if gone:
        monkeypatch.setattr(SlotPermit, "_extend", is_gone)
    holder = await world.hold(world.wish("slot", hold=0, acquire={"ttl": 300.0}))
    run_id = (await holder.result()).run_id
    assert run_id
    assert (run_id != runs[0]) == gone


class Apart:
    """A holder and its permit, whose workers are here in turns, so that events fall together."""

    def __init__(self, world: World, **acquire: float) -> None:
        self.client = world.client
        self.holders = unique("holders")
        self.wish = world.wish("slot", queue=unique("permits"), acquire=acquire)
        self.permit = world.permit(self.wish)

    def holders_served(self) -> AbstractAsyncContextManager[str]:
        """By a worker that keeps no run to itself, so that the next one need not wait for it."""
        return worker(self.client, Holding, queue=self.holders, sandboxed=False, cached=False)

    def permits_served(self) -> AbstractAsyncContextManager[str]:
        kind, queue = PermitSlotWorkflow, self.wish.queue
        return worker(self.client, kind, queue=queue, sandboxed=False, cached=False)

    async def armed(self) -> Handle:
        """A holder whose permit has reported while the holder's worker was away."""
        holder = await self.client.start_workflow(
            Holding.run, self.wish, id=unique("holder"), task_queue=self.holders
        )
        async with self.holders_served():
            await self.until_handled(holder, "TIMER_STARTED")
        async with self.permits_served():
            await self.until_handled(self.permit, "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED")
        return holder

    async def until_handled(self, handle: Handle, kind: str) -> None:
        """Wait until the event was handled: a task that a leaving worker has got would be late."""
        await poll(lambda: status_of(self.client, handle.id))
        await poll(
            handle.fetch_history,
            lambda history: (
                kind in (found := kinds(history)) and found[-1] in ("WORKFLOW_TASK_COMPLETED", kind)
            ),
        )

    async def ends(self, holder: Handle) -> list[str]:
        async with self.holders_served(), self.permits_served():
            return [await until_closed(self.client, holder.id), await self.permit.result()]


async def test_cancelled_in_the_moment_in_which_its_permit_reports(world: World) -> None:
    apart = Apart(world)
    holder = await apart.armed()
    await holder.cancel()
    assert await apart.ends(holder) == ["CANCELED", "released"]


async def test_its_patience_is_over_in_the_moment_in_which_its_permit_reports(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in one workflow task: it has the permit, and gives it back in the end."""
    monkeypatch.setattr(options, "MIN_REPORT_TIMEOUT", 2.0)
    apart = Apart(world, wait=0.5)
    holder = await apart.armed()
    await until_event(holder, "TIMER_FIRED")
    await holder.signal("leave")
    assert await apart.ends(holder) == ["COMPLETED", "released"]


@pytest.mark.parametrize("minutes", [5, pytest.param(60, marks=pytest.mark.long)])
async def test_a_long_wait_on_a_server_that_skips_time(minutes: int) -> None:
    resource, queue = unique("slots"), unique("queue")
    async with (
        await WorkflowEnvironment.start_time_skipping_v2(
            dev_server_existing_path=str(temporal_program().path),
            dev_server_extra_args=[
                "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true",
                "--dynamic-config-value", 'history.timerProcessorMaxTimeShift="20ms"',
            ],
        ) as environment,
        worker(environment.client, PermitSlotWorkflow, Holding, queue=queue, sandboxed=False),
    ):  # fmt: skip
        real = await environment.connect_client()  # whose workflows live in real time
        for slot in "01":
            await real.start_workflow(
                PermitSlotWorkflow.run,
                PermitSlotInput(resource, slot, 20_000.0),
                id=ids.permit_workflow_id(resource, slot),
                task_queue=queue,
            )
        terms = {"wait": 60.0 * minutes, "backoff": 5.0, "ttl": 600.0}
        wish = Wish(resource, queue, "slot", capacity=2, acquire=terms)
        waiter = await environment.client.start_workflow(
            Holding.run, wish, id=unique("waiter"), task_queue=queue
        )
        failure = await failure_of(waiter)
        assert f"within {minutes} min" in failure.message
        assert f"temporal workflow describe --workflow-id permit:{resource}:0`" in failure.message
        history = await waiter.fetch_history()
        took = history.events[-1].event_time.seconds - history.events[0].event_time.seconds
        assert took >= 60 * minutes
        found = count(history)
        skips = found["WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED"]
        assert len(history.events) - skips < 200 + 15 * minutes
        assert found["START_CHILD_WORKFLOW_EXECUTION_FAILED"] >= minutes
        await replay(history, Holding)
