"""Permits in workflow code: what both modes promise."""

import asyncio
import sys
from dataclasses import replace

import pytest
from temporalio.client import WorkflowFailureError

from dibs.temporal.semaphore import Semaphore
from tests.servers.temporal import TemporalServer
from tests.temporal.permit_flows import (
    Held,
    Impatient,
    Interrupted,
    Nested,
    Permits,
    Several,
    Wrong,
)
from tests.temporal.permit_world import World, overlap, spans_of
from tests.temporal.workers import (
    count,
    failure_of,
    kinds,
    poll,
    reset_to,
    until,
    until_closed,
)

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]

both_modes = pytest.mark.parametrize("mode", ["slot", "fair"])


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
async def test_one_workflow_holds_several_resources(world: World, mode: str) -> None:
    wish = world.wish(mode, hold=0.1)
    outer, *inner = await (await world.start(Nested, wish, result=list[Held])).result()
    assert outer.slots == ["0"]
    assert sorted(each.slots for each in inner) == [["0"], ["1"]]


@both_modes
async def test_blocks_and_bare_permits(world: World, mode: str) -> None:
    assert await world.run(Permits, world.wish(mode)) == [
        "0", 0, False, True,  # a lock's permit in its block
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
async def test_a_holder_or_waiter_that_is_cancelled_leaves_nothing_behind(
    world: World, mode: str
) -> None:
    wish = world.wish(mode)
    holder, waiter = await world.holding(wish), await world.waiting(wish)
    for each in (waiter, holder):
        await each.cancel()
        assert await until_closed(world.client, each.id) == "CANCELED"
    await world.until_free(wish)


@both_modes
async def test_6_a_holder_cancelled_while_it_acquires_leaves_nothing_behind(
    world: World, mode: str
) -> None:
    wishes = [world.wish(mode) for _ in range(12)]
    handles = await asyncio.gather(*map(world.hold, wishes))
    for number, handle in enumerate(handles):
        await asyncio.sleep(0.004 * number)
        await handle.cancel()
    for handle, wish in zip(handles, wishes, strict=True):
        assert await until_closed(world.client, handle.id) == "CANCELED"
        if mode == "fair":
            await (await world.hold(replace(wish, hold=0))).result()  # or there may be no broker
        await world.until_free(wish)


@both_modes
async def test_a_waiter_that_is_granted_while_it_leaves_leaves_nothing_behind(
    world: World, mode: str
) -> None:
    wish = world.wish(mode)
    for _ in range(3):
        holder = await world.holding(wish)
        waiter = await world.waiting(replace(wish, hold=0))
        await asyncio.gather(holder.signal("leave"), waiter.cancel())
        await until_closed(world.client, waiter.id)
        await holder.result()
    await world.until_free(wish)


@both_modes
async def test_7_a_second_cancellation_does_not_stop_the_release(world: World, mode: str) -> None:
    wish = world.wish(mode, acquire={"ttl": 300.0})
    assert await world.run(Interrupted, wish, "twice") == ["cancelled", "CancelledError"]
    await world.until_free(wish)


@both_modes
@pytest.mark.parametrize(
    ("how", "noted"),
    [("sibling", ["cancelled", "sibling"]), ("timeout", ["cancelled", "timed out"])],
)
async def test_cancellations_by_others_pass_and_the_permit_is_released(
    world: World, mode: str, how: str, noted: list[str]
) -> None:
    wish = world.wish(mode, acquire={"ttl": 300.0})
    assert await world.run(Interrupted, wish, how) == noted
    await world.until_free(wish)


@both_modes
@pytest.mark.parametrize(
    ("how", "noted"),
    [("own_error", ["lost: expired", "its own"]), ("swallowed", ["swallowed", "expired", "0"])],
)
async def test_a_loss_hides_nothing_and_leaves_nothing(
    world: World, mode: str, how: str, noted: list[str]
) -> None:
    wish = world.wish(mode, acquire={"ttl": 1.0, "auto_renew": False})
    found = await world.run(Interrupted, wish, how)
    assert found[: len(noted)] == noted
    if how == "own_error":
        assert "was lost" in found[-1]  # as a note of the body's own exception


@both_modes
@pytest.mark.parametrize("busy", [False, True])
async def test_4_a_holder_learns_that_its_lease_has_ended(
    world: World, mode: str, busy: bool
) -> None:
    """Also while an activity runs: it is a loss, and no cancellation."""
    wish = world.wish(mode, busy=busy, hold=3.0, acquire={"ttl": 1.0, "auto_renew": False})
    failure = await failure_of(await world.hold(wish))
    assert (failure.type, failure.non_retryable) == ("LeaseLost", True)
    assert "no renewal came in time" in failure.message
    await world.until_free(wish)


@both_modes
async def test_it_is_renewed_for_longer_than_its_ttl_and_no_longer_than_max_hold(
    world: World, mode: str
) -> None:
    wish = world.wish(mode, acquire={"ttl": 3.0, "max_hold": 5.0})
    handle = await world.hold(wish)
    failure = await failure_of(handle)
    assert "as long as max_hold allows" in failure.message
    assert count(await handle.fetch_history())["SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"] >= 2


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


@both_modes
@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_quarantine_outlasts_the_work_of_an_ended_holder(
    world: World, mode: str, how: str
) -> None:
    """Its block has ended by an error, or not at all, so an activity of it may run on."""
    brief = {"ttl": 1.0, "auto_renew": False}
    wish = world.wish(mode, busy=True, hold=1.5, acquire=brief, semaphore={"quarantine": 2.5})
    first = await world.hold(wish)
    await until(lambda: first.id in world.work.begun)
    await getattr(first, how)()
    next_one = await world.hold(replace(wish, hold=0.1))
    await next_one.result()
    spans = world.work.spans
    await until(lambda: spans.keys() >= {first.id, next_one.id})
    assert overlap(spans[first.id], spans[next_one.id]) <= 0


@pytest.mark.parametrize("mode", ["slot", "fast", "fair"])
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


# -- what is wrong, and the sandbox ----------------------------------------------------------------


async def test_arguments_that_make_no_sense_fail_the_workflow(world: World) -> None:
    """They don't make it repeat its task for ever."""
    failure = await failure_of(await world.start(Wrong, "x", -1))
    assert "capacity is -1" in failure.message


async def test_outside_of_a_workflow_it_names_the_right_class() -> None:
    with pytest.raises(ValueError, match=r"elsewhere use dibs\.Semaphore"):
        async with Semaphore("x", capacity=1).acquire():
            pass


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
