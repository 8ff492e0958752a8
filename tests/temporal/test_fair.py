"""Permits of a broker, in workflow code on a real server: order, units, bounds."""

import asyncio
from itertools import pairwise

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

import dibs
from dibs.model import Revoke
from dibs.temporal.fair import acquire as brokered_place
from tests.servers.temporal import TemporalServer
from tests.temporal.fair_flows import (
    Held,
    Holding,
    Patience,
    Siblings,
    Steady,
    Trying,
    TwoSemaphores,
    TwoTasks,
)
from tests.temporal.fair_world import fair_world
from tests.temporal.workers import count, kinds, status_of, unique, until

pytestmark = [pytest.mark.once]


def in_turn(turns: list[Held]) -> bool:
    """Nobody came before the last had left, and tokens grew."""
    return all(a.until <= b.since and a.token < b.token for a, b in pairwise(turns))


async def test_all_are_served_in_order_and_each_has_the_same_short_history(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        waiters = [await world.waiting(hold=0) for _ in range(12)]
        await holder.signal(Holding.leave)
        turns = [await waiter.result() for waiter in waiters]
        assert in_turn(turns)
        histories = [await waiter.fetch_history() for waiter in waiters]
        lengths = {len(history.events) for history in histories}
        # four to start and one to end; an answer that came while a task ran has none of its own
        assert max(lengths) <= 5 + 24
        assert max(lengths) - min(lengths) <= 6
        assert {count(history)["TIMER_STARTED"] for history in histories} == {1}
        assert {count(history)["WORKFLOW_TASK_FAILED"] for history in histories} == {0}


async def test_the_modes_do_not_exclude_each_other(temporal_server: TemporalServer) -> None:
    """A fair holder and one of slot mode have the only slot of one name at the same time."""
    async with fair_world(temporal_server) as world:
        fair = await world.holding()
        slotted = await world.holding(semaphore={"fair": False})
        assert [each.owner.split("/")[0] for each in (await world.status()).holders] == [fair.id]
        assert await status_of(world.client, f"permit:{world.resource}:0") == "RUNNING"
        for each in (fair, slotted):
            await each.signal(Holding.leave)
        one, other = await fair.result(), await slotted.result()
        assert one.slots == other.slots == ["0"]
        assert max(one.since, other.since) < min(one.until, other.until)


async def test_a_higher_priority_comes_first(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        waiters = [
            await world.waiting(hold=0, acquire={"priority": priority}) for priority in (0, 0, 5)
        ]
        await holder.signal(Holding.leave)
        first, second, urgent = [await waiter.result() for waiter in waiters]
        assert in_turn([urgent, first, second])


async def test_units_are_numbered_slots_and_a_large_request_is_not_overtaken(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        one = await world.holding(capacity=3)
        two = await world.holding(capacity=3)
        large = await world.waiting(capacity=3, acquire={"units": 2, "note": "large"})
        small = await world.waiting(capacity=3, hold=0)  # one unit is free, and the large one's
        status = await world.status()
        assert [waiter.note for waiter in status.waiters] == ["large", ""]
        assert status.holders[0].owner.startswith(one.id)
        await one.signal(Holding.leave)
        await large.signal(Holding.leave)
        await small.result()
        await two.signal(Holding.leave)
        assert (await one.result()).slots == ["0"]
        assert (await two.result()).slots == ["1"]
        assert (await large.result()).slots == ["0", "2"]


async def test_several_units_are_tried_for(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        assert await world.run(Trying.run, world.wish(capacity=3), 2) == ["0", "1"]
        assert await world.run(Trying.run, world.wish(capacity=3), 3) == ["0", "1", "2"]


async def test_a_revoked_holder_is_told_and_the_next_one_served(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        waiter = await world.waiting(hold=0)
        await world.broker.ask(Revoke(world.broker.key, None, "an operator wants it"))
        with pytest.raises(WorkflowFailureError) as failed:
            await holder.result()
        assert isinstance(failed.value.cause, ApplicationError)
        assert failed.value.cause.type == "LeaseLost"
        assert failed.value.cause.non_retryable
        await waiter.result()


async def test_who_waits_too_long_is_told_who_is_in_the_way(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding(acquire={"note": "nightly"})
        await world.waiting()
        impatient = await world.start(Patience.run, world.wish())
        with pytest.raises(WorkflowFailureError) as failed:
            await impatient.result()
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "AcquireTimeout"
        assert "(nightly)" in cause.message
        found = await impatient.query(Patience.so_far)
        assert found[0] == "none"
        assert found[1] == "TimeoutError"
        assert found[2].startswith(f"1: semaphore {world.resource} is held by {holder.id}/")
        assert "1 is ahead of you" in found[2]
        assert "this task holds 1 of 1 units" in found[3]
        assert (await world.status()).waiting == 1


async def test_a_cancelled_waiter_gives_its_place_back_and_a_cancelled_holder_its_permit(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        waiter = await world.waiting()
        await waiter.cancel()
        with pytest.raises(WorkflowFailureError):
            await waiter.result()
        await world.until_waiting(0)
        await holder.cancel()
        with pytest.raises(WorkflowFailureError):
            await holder.result()
        await world.until_free()


async def test_a_sibling_that_fails_takes_no_permit_with_it(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        found = await world.run(Siblings.run, world.wish(), unique("mine"))
        assert found == [
            "waits: (ValueError('of a sibling'),)",
            "holds: (ValueError('of a sibling'),)",
            "free",
        ]
        assert (await world.status()).waiting == 0
        await holder.signal(Holding.leave)


async def test_two_tasks_of_one_workflow_take_turns(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        turns: list[Held] = await world.run(TwoTasks.run, world.wish(hold=0))
        assert in_turn(sorted(turns, key=lambda turn: turn.token))


async def test_one_workflow_may_hold_several_things(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        outer, *inner = await world.run(TwoSemaphores.run, world.wish(hold=0))
        assert outer.slots == ["0"]
        assert sorted(each.slots for each in inner) == [["0"], ["1"]]


async def test_a_permit_is_renewed_while_it_is_held_and_else_lost_at_its_deadline(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        lost, later, remaining, failure = await world.run(Steady.run, world.wish())
        assert (lost, later, remaining) == (False, True, True)
        assert failure.startswith("PermitLost: ")
        assert "no renewal came in time" in failure


async def test_who_is_granted_while_it_leaves_leaves_nothing_behind(
    temporal_server: TemporalServer,
) -> None:
    async with fair_world(temporal_server) as world:
        for _ in range(5):
            holder = await world.holding()
            waiter = await world.waiting(hold=0)
            await asyncio.gather(holder.signal(Holding.leave), waiter.cancel())
            await asyncio.wait([asyncio.ensure_future(waiter.result())])
            await holder.result()
        await world.until_free()


async def test_a_reminder_costs_a_waiter_fourteen_events(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them its history does not grow. By itself they come after 60 s, 11 min, 71 min, then hourly."""
    monkeypatch.setattr(brokered_place, "REMINDERS", (1.0,))
    async with fair_world(temporal_server) as world:
        holder = await world.holding()
        waiter = await world.waiting(hold=0)
        asked = "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"

        async def reminded() -> bool:
            return count(await waiter.fetch_history())[asked] >= 4

        await until(reminded)
        found = kinds(await waiter.fetch_history())
        at = [number for number, kind in enumerate(found) if kind == asked]
        costs = [later - earlier for earlier, later in pairwise(at[1:])]
        assert 0 < max(costs) <= 14
        assert (await world.status()).waiting == 1
        await holder.signal(Holding.leave)
        await waiter.result()


async def test_13_a_broker_s_is_one_for_all(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        first = await world.holding(capacity=2)
        second = await world.holding(capacity=2)
        await first.signal(Holding.leave)
        assert (await first.result()).slots == ["0"]
        narrow = await world.waiting(capacity=1, hold=0)
        await second.signal(Holding.leave)
        assert (await second.result()).until <= (await narrow.result()).since


async def test_plain_python_and_workflows_take_turns(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        url = f"{temporal_server.url}?task_queue={world.queue}"
        async with dibs.connect(url) as client:
            semaphore = client.semaphore(world.resource, capacity=1)
            async with semaphore.acquire() as lease:
                flow = await world.waiting()
                plain = asyncio.create_task(_token(semaphore.acquire(wait=30)))
                await world.until_waiting(2)
                last = await world.waiting(hold=0)
            await world.until_holding(flow)
            await flow.signal(Holding.leave)
            tokens = [
                lease.token,
                (await flow.result()).token,
                await plain,
                (await last.result()).token,
            ]
            assert tokens == sorted(tokens)
            await world.until_free()


async def _token(acquiring: object) -> int:
    async with acquiring as lease:  # type: ignore[attr-defined]
        found: int = lease.token
        return found


async def test_plain_python_revokes_what_a_workflow_holds(temporal_server: TemporalServer) -> None:
    async with fair_world(temporal_server) as world:
        url = f"{temporal_server.url}?task_queue={world.queue}"
        holder = await world.holding()
        async with dibs.connect(url) as client:
            semaphore = client.semaphore(world.resource, capacity=1)
            (held,) = (await semaphore.status()).holders
            assert held.owner.startswith(f"{holder.id}/")
            assert await client.revoke(world.resource, kind="semaphore", reason="maintenance") == 1
            with pytest.raises(WorkflowFailureError) as failure:
                await holder.result()
            assert "maintenance" in str(failure.value.cause)
            async with semaphore.acquire(wait=30) as lease:
                assert lease.token > held.token


async def test_20_a_lease_released_late_is_nobody_else_s(temporal_server: TemporalServer) -> None:
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
