"""How activities wait for their locks: in turn, within their attempts and from one to the next."""

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from statistics import median
from typing import Any

import pytest
from temporalio import activity

import dibs
from dibs.temporal import current_lock, needs_lock
from tests.servers.ports import HOST, free_port
from tests.servers.temporal import TemporalServer
from tests.temporal import workers
from tests.temporal.needs_lock_world import WAIT, RunsSteps, Step, pending, waits_for, working

pytestmark = pytest.mark.once

HEARTBEAT = 2.5
"""Of activities that wait for longer, in seconds; who waits is heard of three times as often."""


@pytest.mark.parametrize("wait_in_slot", [None, 0.0], ids=["in slot", "without slot"])
async def test_3_with_1_of_5_slots_free_the_next_runs_at_once(
    wait_in_slot: float | None, temporal_server: TemporalServer, redis_url: str
) -> None:
    """The document's way draws one slot of five at random, once a minute."""
    freed: list[float] = []
    took: list[float] = []

    @activity.defn
    @needs_lock(max_locks=5, lock_name="api", backend=redis_url, wait_in_slot=wait_in_slot)
    async def work() -> None:
        took.append(time.monotonic())

    async with (
        dibs.connect(redis_url) as client,
        working(temporal_server.address, [work]) as world,
    ):
        lock = client.semaphore("api", 5)
        held = [await lock.acquire() for _ in range(5)]
        for _ in range(3):
            handle = await world.start(Step("work"))
            await waits_for(client, "api", 1)
            freed.append(time.monotonic())
            await held.pop().release()
            await handle.result()
            held.append(await lock.acquire())
        for lease in held:
            await lease.release()
    delays = [at - free for at, free in zip(took, freed, strict=True)]
    # a retry, which is what gives it a slot again, is a timer of the server's: it may be a second late
    assert median(delays) < (1.0 if wait_in_slot is None else 5.0), delays


@pytest.mark.parametrize("wait_in_slot", [None, 0.2], ids=["in slot", "without slot"])
async def test_7_they_are_served_in_the_order_in_which_they_came(
    wait_in_slot: float | None, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    order: list[int] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=wait_in_slot)
    async def work(number: int) -> int:
        order.append(number)
        return current_lock().token

    async with working(temporal_server.address, [work]) as world:
        handles = []
        async with store.semaphore("x", 1).acquire():
            for number in range(3):
                handles.append(await world.start(Step("work", [number])))
                await waits_for(store, "x", number + 1)
            if wait_in_slot is not None:
                await world.until_tried_again(*handles)
        tokens = [(await handle.result())[0] for handle in handles]
    assert order == [0, 1, 2]
    assert tokens == sorted(tokens)


async def test_who_has_a_higher_priority_comes_first(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    order: list[str] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=None)
    async def usual() -> None:
        order.append("usual")

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=None, priority=5)
    async def urgent() -> None:
        order.append("urgent")

    async with working(temporal_server.address, [usual, urgent]) as world:
        handles = []
        async with store.semaphore("x", 1).acquire():
            for number, name in enumerate(("usual", "urgent"), start=1):
                handles.append(await world.start(Step(name)))
                await waits_for(store, "x", number)
        for handle in handles:
            await handle.result()
    assert order == ["urgent", "usual"]


@pytest.mark.parametrize("attempts", [0, 7])
async def test_waits_change_nothing_of_the_users_retry_policy(
    attempts: int, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """As the server has it: before the wait, after two ended attempts, and in the history."""

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> int:
        return activity.info().attempt

    async def policy(handle: Any) -> Any:
        (found,) = await pending(handle)
        assert found.maximum_attempts == attempts
        return found.activity_options.retry_policy

    async with working(temporal_server.address, [work]) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", attempts=attempts))
            await waits_for(store, "x", 1)
            before = await policy(handle)
            if not attempts:  # with a limit an attempt waits for as long as it can

                async def twice() -> bool:
                    return bool((await pending(handle))[0].attempt > 2)

                await workers.until(twice)
            assert await policy(handle) == before
        (took,) = await handle.result()
        assert took == 1 if attempts else took > 2
        history = await workers.history_of(world.client, handle.id)
    (scheduled,) = [
        each.activity_task_scheduled_event_attributes.retry_policy
        for each in history.events
        if each.HasField("activity_task_scheduled_event_attributes")
    ]
    assert scheduled == before
    assert before.maximum_attempts == attempts
    assert before.initial_interval.ToMilliseconds() == 50
    assert before.backoff_coefficient == 1.0


async def test_12_a_long_wait_leaves_its_slot_to_other_activities(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    ran: list[int] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> int:
        ran.append(activity.info().attempt)
        return activity.info().attempt

    @activity.defn
    async def other() -> str:
        return "done"

    async with working(
        temporal_server.address, [work, other], max_concurrent_activities=1
    ) as world:
        async with store.semaphore("x", 1).acquire():
            waiting = [await world.start(Step("work")) for _ in range(2)]
            await waits_for(store, "x", 2)
            assert await world.run(Step("other")) == ["done"]
            assert not ran
        attempts = [(await handle.result())[0] for handle in waiting]
    assert min(attempts) >= 2
    assert not (await store.status("x", "semaphore")).holders


async def test_8_a_wait_may_have_an_end_of_its_own(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait=0.3, wait_in_slot=None)
    async def in_slot() -> None: ...

    @activity.defn
    @needs_lock("x", backend=store, wait=4.0, wait_in_slot=0)
    async def without() -> None: ...

    async with (
        working(temporal_server.address, [in_slot, without]) as world,
        store.semaphore("x", 1).acquire(),
    ):
        found = await world.run(Step("in_slot"), Step("without"))
    for each in found:
        assert each.startswith("AcquireTimeout: ")
        assert "is held by" in each


@pytest.mark.parametrize(
    "ends", [{"schedule_to_close": 1.0}, {"start_to_close": 1.0, "attempts": 1}], ids=str
)
async def test_8_without_an_end_of_its_own_it_ends_with_the_activity_or_its_last_attempt(
    temporal_server: TemporalServer, store: dibs.Client, ends: dict[str, Any]
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> None: ...

    async with working(temporal_server.address, [work]) as world:
        async with store.semaphore("x", 1).acquire():
            (found,) = await world.run(Step("work", **ends))
            await waits_for(store, "x", 0)
    assert found.startswith("AcquireTimeout: ")
    assert "is held by" in found


async def test_a_wait_longer_than_an_attempt_keeps_its_place(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """An attempt may take less than a second, and that is not enough."""
    order: list[int] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work(number: int) -> None:
        order.append(number)

    async with working(temporal_server.address, [work]) as world:
        async with store.semaphore("x", 1).acquire():
            first = await world.start(Step("work", [1], start_to_close=0.8))
            await waits_for(store, "x", 1)
            second = await world.start(Step("work", [2]))
            await waits_for(store, "x", 2)

            await world.until_tried_again(first)
            assert (await store.status("x", "semaphore")).waiting == 2
        await first.result()
        await second.result()
    assert order == [1, 2]


async def test_a_wait_costs_none_of_a_limited_number_of_attempts(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """Two attempts are asked for, and the function has two, though the first has waited for long."""
    ran: list[int] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> None:
        ran.append(activity.info().attempt)
        raise RuntimeError("it failed")

    async with working(temporal_server.address, [work]) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", attempts=2))
            await waits_for(store, "x", 1)
            await asyncio.sleep(0.5)
            assert [each.attempt for each in await pending(handle)] == [1]
            policy = (await pending(handle))[0].activity_options.retry_policy
            assert policy.maximum_attempts in {0, 2}, "nobody changes the user's limit"
        (found,) = await handle.result()
    assert found.startswith("RuntimeError")
    assert ran == [1, 2]


async def test_an_attempt_that_has_run_leaves_its_lease_to_no_other(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """The second runs under the id that the first has waited with, and may still run beside the third."""
    tokens: list[int] = []
    end = threading.Event()

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    def work() -> None:
        tokens.append(current_lock().token)
        if len(tokens) == 1:
            end.wait(WAIT)  # the server gives up on it, and it goes on

    async with working(temporal_server.address, [work]) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", start_to_close=1.5))
            await world.until_tried_again(handle)
        await handle.result()
        end.set()
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 2


async def test_the_progress_of_an_earlier_attempt_is_still_told_after_a_wait(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    details: list[Any] = []
    first = asyncio.Event()

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> None:
        details.append(list(activity.info().heartbeat_details))
        if len(details) == 1:
            activity.heartbeat("half", 50)
            first.set()
            raise RuntimeError("it failed half-way")

    async with working(temporal_server.address, [work]) as world:
        lock = store.semaphore("x", 1)
        handle = await world.start(Step("work", heartbeat=20.0))
        await first.wait()
        async with lock.acquire():
            await until_attempt(handle, 3)
        await handle.result()
    assert details == [[], ["half", 50]]


async def test_who_waits_sends_heartbeats(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=None)
    async def work() -> int:
        return activity.info().attempt

    often = timedelta(seconds=0.2)
    async with working(
        temporal_server.address, [work], max_heartbeat_throttle_interval=often
    ) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", heartbeat=HEARTBEAT))

            async def outlived_it() -> bool:
                """It was heard of after it would have been given up."""
                return any(
                    each.last_heartbeat_time.ToMicroseconds()
                    > each.last_started_time.ToMicroseconds() + HEARTBEAT * 1e6
                    for each in await pending(handle)
                )

            await workers.until(outlived_it)
        assert await handle.result() == [1]


async def test_a_workflow_that_ends_leaves_no_place_behind(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=None)
    async def work() -> None: ...

    async with working(temporal_server.address, [work]) as world:
        async with store.semaphore("x", 1).acquire():
            cancelled = await world.start(Step("work", heartbeat=1.5))
            terminated = await world.start(Step("work", heartbeat=1.5))
            await waits_for(store, "x", 2)
            await cancelled.signal(RunsSteps.cancel, 0)
            await terminated.terminate()
            (found,) = await cancelled.result()
            assert found.startswith("CancelledError")
            await waits_for(store, "x", 0)


@pytest.mark.parametrize("wait_in_slot", [None, 0.1], ids=["in slot", "without slot"])
async def test_another_worker_continues_the_wait_at_the_same_position(
    wait_in_slot: float | None, temporal_server: TemporalServer, redis_url: str
) -> None:
    """The first worker shuts down; its position is not given up, and is granted to the other's attempt."""
    ran: list[str] = []

    def make(name: str) -> Any:
        @activity.defn(name="work")
        @needs_lock("x", backend=redis_url, wait_in_slot=wait_in_slot)
        async def work() -> None:
            ran.append(name)

        return work

    async with dibs.connect(redis_url) as store, store.semaphore("x", 1).acquire() as lease:

        async def waiting() -> list[str]:
            return [each.lease for each in (await store.status("x", "semaphore")).waiters]

        async with working(temporal_server.address, [make("first")]) as world:
            handle = await world.start(Step("work"))
            await waits_for(store, "x", 1)
            before = await waiting()
        assert await waiting() == before
        async with working(temporal_server.address, [make("second")], queue=world.queue):
            await until_attempt(handle, 2)
            assert await waiting() == before
            await lease.release()
            await handle.result()
    assert ran == ["second"]


async def test_never_more_than_there_are_slots(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    """Two workers, few slots, attempts that fail, and waits that go on without a slot."""
    running: dict[int, int] = {}
    tokens: list[tuple[int, int]] = []
    runs: Counter[int] = Counter()

    @activity.defn
    @needs_lock("x", capacity=3, backend=redis_url, wait_in_slot=0.2)
    async def work(number: int) -> int:
        lock = current_lock()
        assert lock.slot not in running, f"{running[lock.slot]} has it too"
        running[lock.slot] = number
        tokens.append((lock.slot, lock.token))
        runs[number] += 1
        try:
            await asyncio.sleep(0.1)
            if number % 4 == 0 and runs[number] == 1:
                raise RuntimeError("it fails")
            return number
        finally:
            del running[lock.slot]

    async with (
        working(temporal_server.address, [work], max_concurrent_activities=4) as world,
        working(temporal_server.address, [work], queue=world.queue, max_concurrent_activities=4),
        dibs.connect(redis_url) as client,
    ):
        steps = [Step("work", [number]) for number in range(16)]
        found = await world.run(*steps)
        assert not (await client.status("x", "semaphore")).holders
    assert found == list(range(16))
    assert runs == {number: 1 if number % 4 else 2 for number in range(16)}
    for slot in range(3):
        mine = [token for each, token in tokens if each == slot]
        assert mine == sorted(set(mine))


async def until_attempt(handle: Any, number: int) -> None:
    """Wait until an activity of a workflow is in this attempt, or in a later one."""
    async with asyncio.timeout(WAIT):
        while not any(each.attempt >= number for each in await pending(handle)):
            await asyncio.sleep(0.02)


async def test_an_outage_of_the_store_is_told_as_such(
    temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Not as a wait for others; and the worker logs it once."""

    @activity.defn
    @needs_lock("x", backend=f"redis://{HOST}:{free_port()}", wait_in_slot=2.5)
    async def work() -> None:
        """It never gets its lock."""

    async with working(temporal_server.address, [work]) as world:
        handle = await world.start(Step("work"))
        async with asyncio.timeout(WAIT):
            while not any(each.attempt > 2 for each in await pending(handle)):
                await asyncio.sleep(0.02)
        (waiting,) = await pending(handle)
        await handle.terminate()
    assert "its store is away" in waiting.last_failure.message
    warnings = [each for each in caplog.records if "their store is away" in each.getMessage()]
    assert len(warnings) == 1
