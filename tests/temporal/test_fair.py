"""Fair mode on a real server: order, units, plain Python beside workflows, and brokers that end."""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

import dibs
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import bytes_of
from dibs.temporal.broker.owners import OwnerWatch
from dibs.temporal.fair import acquire as fair_acquiring
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.permit_flows import FLOWS, Held, Relay, Several, Units, Wish
from tests.temporal.permit_world import SERVED, World, permit_world
from tests.temporal.workers import (
    count,
    failure_of,
    kinds,
    poll,
    replay,
    reset_to,
    status_of,
    unique,
    until_event,
    worker,
)

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]

ASKED = "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"


def in_turn(turns: list[Held]) -> bool:
    """Each came after the one before had left, and tokens rose."""
    return all(a.until <= b.since and (a.token or 0) < (b.token or 0) for a, b in pairwise(turns))


async def test_all_are_served_in_order_and_each_has_the_same_short_history(world: World) -> None:
    wish = world.wish()
    holder = await world.holding(wish)
    waiters = [await world.waiting(replace(wish, hold=0)) for _ in range(8)]
    await holder.signal("leave")
    assert in_turn([await waiter.result() for waiter in waiters])
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


async def test_a_higher_priority_comes_first(world: World) -> None:
    wish = world.wish()
    holder = await world.holding(wish)
    waiters = [
        await world.waiting(replace(wish, hold=0, acquire={"priority": priority}))
        for priority in (0, 0, 5)
    ]
    await holder.signal("leave")
    first, second, urgent = [await waiter.result() for waiter in waiters]
    assert in_turn([urgent, first, second])


async def test_units_are_numbered_slots_and_a_large_request_is_not_overtaken(world: World) -> None:
    wish = world.wish(capacity=3)
    assert await world.run(Units, wish, 2) == ["0", "1"]
    assert await world.run(Units, wish, 3) == ["0", "1", "2"]
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


async def test_the_broker_of_a_long_name_can_be_listed(world: World) -> None:
    """Its ID has only a hash of the name, so its memo has the key."""
    wish = world.wish(resource=unique() + "n" * 400)
    holder = await world.holding(wish)
    broker = world.broker(wish)
    described = await broker.handle.describe()
    assert bytes_of(await described.memo_value(ids.MEMO, type_hint=str)) == broker.key
    await holder.signal("leave")


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
    run = relay.first_execution_run_id
    for _ in range(2):
        await world.client.get_workflow_handle(relay.id).signal("leave")
        run = await world.until_next_run_holds(relay, run)
    status = await world.status(wish)
    assert [holder.token for holder in status.holders] == [token]
    assert status.waiting == 1
    await world.broker(wish).revoke()
    assert (await failure_of(relay)).type == "LeaseLost"
    assert ((await waiter.result()).token or 0) > token


async def test_a_waiter_that_was_terminated_is_passed_over(world: World) -> None:
    wish = world.wish()
    holder, gone = await world.holding(wish), await world.waiting(wish)
    waiter = await world.waiting(replace(wish, hold=0))
    await gone.terminate()
    await holder.signal("leave")
    await waiter.result()
    await world.until_free(wish)


async def test_fast_frees_what_a_terminated_holder_had_but_not_what_was_handed_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnerWatch, "EVERY", 0.2)
    wish = world.wish(runs=2, semaphore={"on_holder_close": "fast"}, acquire={"ttl": 300.0})
    relay = await world.holding(wish, Relay)
    waiter = await world.waiting(replace(wish, hold=0))
    await relay.signal("leave")
    await world.until_next_run_holds(relay, relay.first_execution_run_id)
    broker = world.broker(wish).handle
    looks = count(await broker.fetch_history())["ACTIVITY_TASK_COMPLETED"]
    await until_event(broker, "ACTIVITY_TASK_COMPLETED", looks + 3)  # one may have been under way
    assert (await world.status(wish)).waiting == 1
    await world.client.get_workflow_handle(relay.id).terminate()
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


async def test_all_goes_on_when_the_worker_comes_back(temporal_server: TemporalServer) -> None:
    away = timedelta(seconds=0.5)  # the server waits so long for the worker that knows the run
    async with permit_world(temporal_server, sticky_queue_schedule_to_start_timeout=away) as world:
        wish = world.wish()
        holder = await world.holding(wish)
        waiters = [await world.waiting(replace(wish, hold=0)) for _ in range(3)]
        for each in (world.broker(wish).handle, holder, *waiters):
            # a task that a leaving worker gets is another's only after ten seconds
            await poll(
                each.fetch_history, lambda found: kinds(found)[-1] == "WORKFLOW_TASK_COMPLETED"
            )
    await holder.signal("leave")
    async with worker(
        world.client, *SERVED, queue=world.queue, activities=[owner_closed], sandboxed=False
    ):
        assert in_turn([await waiter.result() for waiter in waiters])


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
