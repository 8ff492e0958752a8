"""Permits in workflow code: what both modes promise."""

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise, product

import pytest
import pytest_asyncio
from temporalio.client import WorkflowFailureError
from temporalio.testing import ActivityEnvironment

import dibs
from dibs.model import Revoke
from dibs.temporal import PermitSlotWorkflow, options
from dibs.temporal.broker.owners import WAITS, OwnerWatch
from dibs.temporal.fair import acquire as fair_acquiring
from dibs.temporal.slots.acquire import PAUSE, PROBE
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.permit_flows import (
    FLOWS,
    Held,
    Holding,
    Impatient,
    Interrupted,
    Permits,
    Relay,
    Several,
    Wish,
)
from tests.temporal.permit_world import World, overlap, permit_world, spans_of
from tests.temporal.workers import (
    count,
    failure_of,
    kinds,
    poll,
    replay,
    reset_to,
    status_of,
    unique,
    until,
    until_closed,
    until_event,
    worker,
)

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(temporal_server: TemporalServer) -> AsyncIterator[World]:
    async with permit_world(temporal_server) as found:
        yield found


type Check = Callable[..., Awaitable[None]]


def at_once(*cases: tuple[str, ...]) -> Callable[[Check], Callable[[World], Awaitable[None]]]:
    """One test of several cases: they mostly wait."""

    def decorate(check: Check) -> Callable[[World], Awaitable[None]]:
        async def run(world: World, case: tuple[str, ...]) -> None:
            try:
                await check(world, *case)
            except Exception as error:
                error.add_note(f"in {case}")
                raise

        async def test(world: World) -> None:
            async with asyncio.TaskGroup() as group:
                for case in cases:
                    group.create_task(run(world, case))

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


both_modes = at_once(("slot",), ("fair",))


@both_modes
async def test_as_many_as_there_are_slots(world: World, mode: str) -> None:
    """And the tokens of each slot rise."""
    wish = world.wish(mode, capacity=2, hold=0.3)
    handles = [await world.hold(wish) for _ in range(5)]
    helds: list[Held] = await asyncio.gather(*(handle.result() for handle in handles))
    assert {tuple(each.slots) for each in helds} == {("0",), ("1",)}
    for slot in "01":
        mine = sorted((each for each in helds if each.slots == [slot]), key=lambda held: held.since)
        assert overlap(*spans_of(mine)) <= 0
        tokens = [each.token or 0 for each in mine]
        assert tokens == sorted({0, *tokens})[1:]


@both_modes
async def test_tasks_of_one_workflow_take_turns(world: World, mode: str) -> None:
    """In slot mode without asking the server in vain."""
    handle = await world.start(Several, world.wish(mode, hold=0.01), 4, result=list[Held])
    assert overlap(*spans_of(await handle.result())) <= 0
    if mode == "slot":
        assert "START_CHILD_WORKFLOW_EXECUTION_FAILED" not in kinds(await handle.fetch_history())


@both_modes
async def test_blocks_and_bare_permits(world: World, mode: str) -> None:
    assert await world.run(Permits, world.wish(mode)) == [
        "0", True, False, True,  # a lock's permit in its block, beside another
        True, "NotHeld", 0.0, "released>",  # the next has a higher token, and then it is over
        True, True, True, False,  # a bare one is renewed, has too little time, is released once
    ]  # fmt: skip


@both_modes
async def test_a_wait_ends_by_time_or_with_an_error_where_it_would_be_for_itself(
    world: World, mode: str
) -> None:
    wish = world.wish(mode)
    holder = await world.holding(replace(wish, acquire={"note": "nightly"}))
    *tried, itself, late = await world.run(Impatient, wish)
    assert tried == ["none", "timed out"]
    assert itself.startswith("Reentrant: ")
    assert "this task holds" in itself
    assert late.startswith("AcquireTimeout: ")
    assert ("(nightly)" if mode == "fair" else f"permit:{wish.resource}:0") in late
    await holder.signal("leave")
    await holder.result()
    await world.until_free(wish)


@both_modes
async def test_6_a_holder_cancelled_while_it_acquires_leaves_nothing_behind(
    world: World, mode: str
) -> None:
    async def cancelled_after(seconds: float) -> None:
        wish = world.wish(mode, acquire={"ttl": 300.0})
        handle = await world.hold(wish)
        await asyncio.sleep(seconds)
        await handle.cancel()
        assert await until_closed(world.client, handle.id) == "CANCELED"
        if mode == "fair":
            await (await world.hold(replace(wish, hold=0))).result()  # or there may be no broker
        await world.until_free(wish)

    await asyncio.gather(
        *(cancelled_after(seconds) for seconds in (0.0, 0.05, 0.1)),
        check_interrupted(world, world.wish(mode, acquire={"ttl": 300.0}), early=["free"]),
    )


@both_modes
async def test_a_waiter_that_is_granted_while_it_leaves_leaves_nothing_behind(
    world: World, mode: str
) -> None:
    wish = world.wish(mode, acquire={"ttl": 300.0})
    for _ in range(2):
        holder = await world.holding(wish)
        waiter = await world.waiting(replace(wish, hold=0))
        await asyncio.gather(holder.signal("leave"), waiter.cancel())
        await until_closed(world.client, waiter.id)
        await holder.result()
    await world.until_free(wish)


@both_modes
async def test_7_a_second_cancellation_does_not_stop_the_release(world: World, mode: str) -> None:
    """Nor do those by others, which pass."""
    await check_interrupted(
        world,
        world.wish(mode, acquire={"ttl": 300.0}),
        twice=["cancelled", "CancelledError"],
        timeout=["cancelled", "timed out"],
    )


@both_modes
async def test_a_loss_hides_nothing_and_leaves_nothing(world: World, mode: str) -> None:
    await check_interrupted(
        world,
        world.wish(mode, acquire={"ttl": 1.0, "auto_renew": False}),
        own_error=["lost: expired", "its own", "was lost"],  # as a note of the body's exception
        swallowed=["swallowed", "expired", "0"],
    )


async def check_interrupted(world: World, wish: Wish, **noted: list[str]) -> None:
    wishes = [replace(wish, resource=f"{wish.resource}-{how}") for how in noted]
    flows = [world.run(Interrupted, *each) for each in zip(wishes, noted, strict=True)]
    for found, wanted in zip(await asyncio.gather(*flows), noted.values(), strict=True):
        assert len(found) == len(wanted)
        assert all(part in text for part, text in zip(wanted, found, strict=True)), found
    for each in wishes:
        await world.until_free(each)


@both_modes
async def test_4_a_holder_learns_that_its_lease_has_ended(world: World, mode: str) -> None:
    """Also while an activity runs: it is a loss, and no cancellation."""
    wish = world.wish(mode, busy=True, hold=3.0, acquire={"ttl": 1.0, "auto_renew": False})
    failure = await failure_of(await world.hold(wish))
    assert (failure.type, failure.non_retryable) == ("LeaseLost", True)
    assert "no renewal came in time" in failure.message
    await world.until_free(wish)


@both_modes
async def test_it_is_renewed_for_longer_than_its_ttl_and_no_longer_than_max_hold(
    world: World, mode: str
) -> None:
    wish = world.wish(mode, acquire={"ttl": 3.0, "max_hold": 4.0})
    failure = await failure_of(await world.hold(wish))
    assert "as long as max_hold allows" in failure.message
    assert re.search(r"held for [3-9] s", failure.message)


@both_modes
async def test_a_terminated_holder_keeps_it_until_its_lease_ends(world: World, mode: str) -> None:
    wish = world.wish(mode, acquire={"ttl": 2.0, "auto_renew": False})
    holder = await world.holding(wish)
    ends_at = await world.ends_at(wish)
    permit = world.permit(wish)
    await holder.terminate()
    waiter = await world.hold(replace(wish, hold=0))
    assert (await waiter.result()).since >= ends_at - 0.1
    if mode == "slot":
        history = await permit.fetch_history()
        assert kinds(history)[-1] == "WORKFLOW_EXECUTION_COMPLETED"


@at_once(*product(("slot", "fair"), ("terminate", "cancel")))
async def test_a_quarantine_outlasts_the_work_of_an_ended_holder(
    world: World, mode: str, how: str
) -> None:
    """Its block has ended by an error, or not at all, so an activity of it may run on."""
    brief = {"ttl": 1.0, "auto_renew": False}
    wish = world.wish(mode, busy=True, hold=1.5, acquire=brief, semaphore={"quarantine": 2.5})
    first = await world.hold(wish)
    await until(lambda: first.id in world.work.begun)
    await getattr(first, how)()
    next_one = await world.hold(replace(wish, hold=0.1, acquire={"ttl": 20.0}))
    await next_one.result()
    spans = world.work.spans
    await until(lambda: spans.keys() >= {first.id, next_one.id})
    assert overlap(spans[first.id], spans[next_one.id]) <= 0


@at_once(("slot",), ("fast",), ("fair",))
async def test_a_holder_that_is_reset_and_another_never_hold_both(world: World, mode: str) -> None:
    """The new run holds what the old run had, or learns that it doesn't."""
    close = {"on_holder_close": "fast"} if mode == "fast" else {}
    mode = "fair" if mode == "fair" else "slot"
    wish = world.wish(mode, acquire={"ttl": 4.0}, semaphore=close)
    holder = await world.holding(wish)
    found = kinds(await holder.fetch_history())
    signaled = found.index("WORKFLOW_EXECUTION_SIGNALED")
    held_from = found.index("WORKFLOW_TASK_COMPLETED", signaled) + 1
    again = await reset_to(world.client, holder, held_from, Held)
    other = await world.hold(replace(wish, hold=0, acquire={}))
    renewing = "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"
    before = found[:held_from].count(renewing)
    await poll(
        again.fetch_history,
        lambda history: (
            count(history)[renewing] > before or count(history)["WORKFLOW_EXECUTION_FAILED"]
        ),
    )
    await again.signal("leave")
    try:
        mine: Held = await again.result()
    except WorkflowFailureError:
        assert (await failure_of(again)).type == "LeaseLost"
        await other.result()
    else:
        theirs = await other.result()
        assert mine.until <= theirs.since
        assert (mine.token or 0) < (theirs.token or 0)


async def test_in_the_sandbox_and_replayed_from_its_history_for_each_task(
    temporal_server: TemporalServer,
) -> None:
    """Nothing is passed through the sandbox, and nothing is kept between tasks."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.temporal.permit_world", temporal_server.address),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await program.communicate()
    assert (program.returncode, said) == (0, b"released\n")


FAST = {"on_holder_close": "fast"}


# -- beside the guide ------------------------------------------------------------------------------


async def test_the_guide_s_holders_and_ours_exclude_each_other(world: World) -> None:
    """Also where a permit is served by the other's worker: the guide's can't report or be renewed."""
    shared = {"resource": unique("resource"), "hold": 0.1}
    handles = [
        await world.hold(world.wish(mode, queue=queue, **more, **shared))
        for queue, more in (
            (world.queue, {}),
            (world.guides, {"semaphore": {"armed": False}, "acquire": {"auto_renew": False}}),
        )
        for mode in ("guide", "slot")
    ]
    helds = await asyncio.gather(*(handle.result() for handle in handles))
    assert overlap(*spans_of(helds)) <= 0
    assert [held.token is None for held in helds] == [True, False, True, True]


# -- the end of a permit and of its holder ---------------------------------------------------------


async def test_1_a_late_release_leaves_another_task_s_permit_alone(world: World) -> None:
    """A run that took a permit over does not learn of its end before the next renewal."""
    wish = world.wish("slot", runs=2, acquire={"ttl": 60.0})
    relay = await world.holding(wish, Relay)
    await world.hand_over(relay)
    await world.permit(wish).terminate()
    holder = await world.holding(wish)
    await world.latest(relay).signal("leave")
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


async def test_4_a_holder_whose_permit_is_ended_learns_of_it(world: World) -> None:
    for how, done in (("terminate", "terminated"), ("cancel", "cancelled")):
        wish = world.wish("slot")
        holder = await world.holding(wish)
        await getattr(world.permit(wish), how)()
        failure = await failure_of(holder)
        assert (failure.type, failure.non_retryable) == ("LeaseLost", True)
        assert f"{wish.resource}:0" in failure.message
        assert f"was lost: somebody has {done} its workflow" in failure.message


async def test_fast_frees_at_once_what_a_terminated_holder_had_and_hands_nothing_over(
    world: World,
) -> None:
    wish = world.wish("slot", runs=2, semaphore=FAST)
    relay = await world.holding(wish, Relay)
    await relay.terminate()
    assert await until_closed(world.client, world.permit(wish).id) == "TERMINATED"
    failure = await failure_of(await world.start(Relay, replace(wish, hold=0.01)))
    assert 'take on_holder_close="safe"' in failure.message


async def test_8_a_permit_is_handed_over_a_continue_as_new(world: World) -> None:
    wish = world.wish("slot", runs=2, acquire={"max_backoff": 0.5, "ttl": 60.0})
    relay = await world.holding(wish, Relay)
    other = await world.hold(replace(wish, hold=0))
    await world.hand_over(relay)
    await world.until_tried(other, 2 + await world.until_tried(other))
    found = count(await other.fetch_history())
    tries, pauses = found["START_CHILD_WORKFLOW_EXECUTION_FAILED"], found["TIMER_STARTED"]
    assert found.total() <= 8 + tries * PROBE + pauses * PAUSE, "an hour's events are computed so"
    await world.latest(relay).signal("leave")
    helds = await asyncio.gather(relay.result(), other.result())
    assert overlap(*spans_of(helds)) <= 0


async def test_a_hand_over_does_not_begin_the_quarantine(world: World) -> None:
    """The end of the run that started it cancels it, before the next run adopts it or after."""
    more = {"acquire": {"ttl": 8.0}, "semaphore": {"quarantine": 60.0}}
    wishes = [world.wish("slot", runs=3, hold=0.05, **more) for _ in range(2)]
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
        handles = [await world.hold(wish) for wish in (nobody, unknown)]
        mends = ("dibs temporal worker", "PermitSlotWorkflow")
        for wish, handle, mend in zip((nobody, unknown), handles, mends, strict=True):
            failure = await failure_of(handle)
            permit = world.permit(wish).id
            assert f"nobody serves the task queue '{wish.queue}'" in failure.message
            assert mend in failure.message
            assert f"`temporal workflow terminate --workflow-id {permit}`" in failure.message
            assert await until_closed(world.client, permit) == "TERMINATED"


async def test_reset_to_before_its_acquire_meets_its_own_permit_and_waits_for_it(
    world: World,
) -> None:
    wish = world.wish("slot", acquire={"ttl": 2.0, "auto_renew": False})
    holder = await world.holding(wish)
    first = await world.permit(wish).describe()
    again = await reset_to(world.client, holder, 4, Held)
    await again.signal("leave")
    held: Held = await again.result()
    assert held.run_id != first.run_id
    ended = await world.client.get_workflow_handle(first.id, run_id=first.run_id).describe()
    assert ended.close_time is not None
    assert ended.close_time.timestamp() <= held.since


ASKED = "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"


def in_turn(turns: list[Held]) -> bool:
    """Each came after the one before had left, and tokens rose."""
    return all(a.until <= b.since and (a.token or 0) < (b.token or 0) for a, b in pairwise(turns))


async def test_all_are_served_in_order_and_each_has_the_same_short_history(
    world: World,
) -> None:
    wish = world.wish(hold=0)
    holder = await world.holding(replace(wish, hold=None))
    waiters = [await world.waiting(wish) for _ in range(6)]
    urgent = await world.waiting(replace(wish, acquire={"priority": 5}))
    await holder.signal("leave")
    assert in_turn([await waiter.result() for waiter in (urgent, *waiters)])
    histories = [await waiter.fetch_history() for waiter in waiters]
    lengths = {len(history.events) for history in histories}
    # four to start and one to end; an answer that came while a task ran has none of its own
    assert max(lengths) <= 5 + 24
    assert max(lengths) - min(lengths) <= 6
    assert {count(history)["TIMER_STARTED"] for history in histories} == {1}
    assert {count(history)["WORKFLOW_TASK_FAILED"] for history in histories} == {0}


async def test_the_modes_do_not_exclude_each_other(world: World) -> None:
    wish = world.wish()
    fair, slotted = [await world.holding(replace(wish, mode=mode)) for mode in ("fair", "slot")]
    assert [each.owner.split("/")[0] for each in (await world.status(wish)).holders] == [fair.id]
    assert await status_of(world.client, world.permit(wish).id) == "RUNNING"
    for each in (fair, slotted):
        await each.signal("leave")
    one, other = await fair.result(), await slotted.result()
    assert one.slots == other.slots == ["0"]
    assert max(one.since, other.since) < min(one.until, other.until)


async def test_units_are_numbered_slots_and_a_large_request_is_not_overtaken(world: World) -> None:
    wish = world.wish(capacity=3)
    one, two = [await world.holding(wish) for _ in range(2)]
    large = await world.waiting(replace(wish, acquire={"units": 2, "note": "large"}))
    small = await world.waiting(replace(wish, hold=0))  # one unit is free, and the large one's
    status = await world.status(wish)
    assert [waiter.note for waiter in status.waiters] == ["large", ""]
    assert status.holders[0].owner.startswith(one.id)
    await one.signal("leave")
    await large.signal("leave")
    await small.result()
    await two.signal("leave")
    slots = [(await each.result()).slots for each in (one, two, large)]
    assert slots == [["0"], ["1"], ["0", "2"]]


# -- plain Python beside workflows -----------------------------------------------------------------


async def test_plain_python_and_workflows_take_turns(
    world: World, temporal_server: TemporalServer
) -> None:
    wish = world.wish()

    async def plain(semaphore: dibs.Semaphore) -> int:
        async with semaphore.acquire(wait=30) as lease:
            return lease.token

    async with dibs.connect(f"{temporal_server.url}?task_queue={world.queue}") as client:
        semaphore = client.semaphore(wish.resource, capacity=1)
        async with semaphore.acquire() as lease:
            flow = await world.waiting(wish)
            between = asyncio.create_task(plain(semaphore))
            await world.until_waiting(wish, 2)
            last = await world.waiting(replace(wish, hold=0))
        await world.until_holding(flow)
        await flow.signal("leave")
        tokens = [lease.token, (await flow.result()).token, await between]
        tokens.append((await last.result()).token)
        assert tokens == sorted(tokens, key=lambda token: token or 0)
        await world.until_free(wish)


async def test_a_revoked_holder_is_told_and_the_next_one_served(
    world: World, temporal_server: TemporalServer
) -> None:
    wish = world.wish()
    holder = await world.holding(wish)
    waiter = await world.waiting(replace(wish, hold=0))
    async with dibs.connect(f"{temporal_server.url}?task_queue={world.queue}") as client:
        (held,) = (await client.semaphore(wish.resource, capacity=1).status()).holders
        assert held.owner.startswith(f"{holder.id}/")
        assert await client.revoke(wish.resource, kind="semaphore", reason="maintenance") == 1
    failure = await failure_of(holder)
    assert (failure.type, failure.non_retryable) == ("LeaseLost", True)
    assert "maintenance" in failure.message
    assert ((await waiter.result()).token or 0) > held.token


# -- holders and waiters that end, continue as new, or are reset -----------------------------------


async def test_a_permit_is_handed_to_the_next_run_which_is_told_of_its_loss(world: World) -> None:
    wish = world.wish(runs=3)
    relay = await world.holding(wish, Relay)
    token = (await world.status(wish)).holders[0].token
    waiter = await world.waiting(replace(wish, hold=0))
    for _ in range(2):
        await world.hand_over(relay)
    status = await world.status(wish)
    assert [holder.token for holder in status.holders] == [token]
    assert status.waiting == 1
    first = [relay.id, relay.first_execution_run_id or ""]
    asked = ActivityEnvironment(client=world.client).run(owner_closed, [first, [*first, WAITS]])
    assert await asked == [False, True], "its next run may hold what it held, but waits for nothing"
    await world.broker(wish).ask(Revoke(world.broker(wish).key, None, "maintenance"))
    assert (await failure_of(relay)).type == "LeaseLost"
    assert ((await waiter.result()).token or 0) > token


async def test_a_waiter_that_was_terminated_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = world.wish()
    holder, gone = await world.holding(wish), await world.waiting(wish)
    waiter = await world.waiting(replace(wish, hold=0))
    await gone.terminate()
    await holder.signal("leave")
    await waiter.result()
    await world.until_free(wish)

    monkeypatch.setattr(OwnerWatch, "EVERY", 0.2)
    wish = world.wish(capacity=2)
    holder = await world.holding(wish)
    large = await world.waiting(replace(wish, acquire={"units": 2}))
    small = await world.waiting(replace(wish, hold=0))
    await large.terminate()
    await small.result()
    await holder.signal("leave")


async def test_fast_frees_what_a_terminated_holder_had_but_not_what_was_handed_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.2)
    wish = world.wish(runs=2, semaphore={"on_holder_close": "fast"}, acquire={"ttl": 300.0})
    relay = await world.holding(wish, Relay)
    waiter = await world.waiting(replace(wish, hold=0))
    await world.hand_over(relay)
    broker = world.broker(wish).handle
    looks = count(await broker.fetch_history())["ACTIVITY_TASK_COMPLETED"]
    await until_event(broker, "ACTIVITY_TASK_COMPLETED", looks + 3)  # one may have been under way
    assert (await world.status(wish)).waiting == 1
    await world.latest(relay).terminate()
    await waiter.result()


async def test_a_waiter_that_is_reset_asks_anew(world: World) -> None:
    wish = world.wish()
    holder, waiter = await world.holding(wish), await world.waiting(replace(wish, hold=0))
    again = await reset_to(world.client, waiter, 4, Held)
    # The old run's place goes when the broker can't tell it something: now, or at its turn.
    await poll(
        lambda: world.status(wish),
        lambda status: any(f"{waiter.id}/{again.run_id}/" in each.owner for each in status.waiters),
    )
    await holder.signal("leave")
    await again.result()
    await world.until_free(wish)


# -- brokers and workers that go away --------------------------------------------------------------


async def test_a_reminder_costs_a_waiter_fourteen_events(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its history does not grow in between. By default: after 60 s, 11 min, 71 min, then hourly."""
    monkeypatch.setattr(fair_acquiring, "REMINDERS", (0.5,))
    wish = world.wish()
    holder, waiter = await world.holding(wish), await world.waiting(replace(wish, hold=0))
    await until_event(waiter, ASKED, 4)
    found = kinds(await waiter.fetch_history())
    at = [number for number, kind in enumerate(found) if kind == ASKED]
    costs = [later - earlier for earlier, later in pairwise(at[1:])]
    assert 0 < max(costs) <= 14
    assert (await world.status(wish)).waiting == 1
    await holder.signal("leave")
    await waiter.result()


async def test_a_broker_that_was_terminated_takes_its_grants_with_it_and_waiters_ask_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_acquiring, "REMINDERS", (1.5,))  # after the holder's renewal
    wish = world.wish(acquire={"ttl": 3})
    holder, waiter = await world.holding(wish), await world.waiting(wish)
    await world.broker(wish).handle.terminate()
    failure = await failure_of(holder)
    assert failure.type == "LeaseLost"
    assert "ended from outside (its broker is gone)" in failure.message
    await world.until_holding(waiter)
    await waiter.signal("leave")
    await waiter.result()


async def test_a_broker_that_no_worker_serves_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_acquiring, "ANSWERED", 0.5)
    wish = world.wish(queue=unique("served-by-nobody"), acquire={"wait": 0.1})
    for words in ("on which it has just been started", "it has been there before"):
        failure = await failure_of(await world.hold(wish))
        assert failure.type == "BackendUnavailable"
        assert f"temporal worker --task-queue {wish.queue}" in failure.message
        assert words in failure.message
    await world.broker(wish).handle.terminate()


async def test_each_task_replays_the_whole_history_and_logs_nothing(
    temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with permit_world(temporal_server, cached=False) as world:
        wish: Wish = world.wish()
        holder, waiter = await world.holding(wish), await world.waiting(wish)
        tasks = await world.start(Several, replace(wish, hold=0), 2)
        await world.until_waiting(wish, 3)
        await waiter.cancel()
        await holder.signal("leave")
        await tasks.result()
        await world.until_free(wish)
    logged = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert logged == []
    for flow in (holder, waiter, tasks):
        await replay(await flow.fetch_history(), *FLOWS)
