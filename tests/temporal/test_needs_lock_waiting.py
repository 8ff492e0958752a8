"""How activities wait for their locks: in turn, at once when it is theirs, and long without a slot."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from statistics import median
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import AsyncActivityHandle
from temporalio.service import RPCError, RPCStatusCode

import dibs
from dibs.temporal import LockInterceptor, current_lock, needs_lock
from tests.servers.temporal import TemporalServer
from tests.temporal import workers
from tests.temporal.needs_lock_world import RunsSteps, Step, until, waits_for, working

pytestmark = pytest.mark.once

HEARTBEAT = 2.5
"""Of activities that wait for longer, in seconds; who waits is heard of three times as often."""


@pytest.fixture
async def store() -> AsyncIterator[dibs.Client]:
    """A store in memory, of its own."""
    async with dibs.connect("memory://") as client:
        yield client


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
            await world.until_without_slot(0 if wait_in_slot is None else 3)
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


async def test_12_a_long_wait_keeps_no_slot_and_costs_no_other_activity_one(
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
    assert attempts == [2, 2]  # one attempt has waited, however long it took
    assert not (await store.status("x", "semaphore")).holders


async def test_8_a_wait_may_have_an_end_of_its_own(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait=0.3, wait_in_slot=None)
    async def in_slot() -> None: ...

    @activity.defn
    @needs_lock("x", backend=store, wait=0.3, wait_in_slot=0)
    async def without() -> None: ...

    async with (
        working(temporal_server.address, [in_slot, without]) as world,
        store.semaphore("x", 1).acquire(),
    ):
        found = await world.run(Step("in_slot"), Step("without"))
    for each in found:
        assert each.startswith("AcquireTimeout: ")
        assert "is held by" in each


async def test_8_without_an_end_of_its_own_it_ends_with_the_activity(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> None: ...

    async with working(temporal_server.address, [work]) as world:
        async with store.semaphore("x", 1).acquire():
            (found,) = await world.run(Step("work", schedule_to_close=1.0))
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

            async def tried_again() -> bool:
                pending = (await first.describe()).raw_description.pending_activities
                return any(activity.attempt > 1 for activity in pending)

            await workers.until(tried_again)
            assert (await store.status("x", "semaphore")).waiting == 2
        await first.result()
        await second.result()
    assert order == [1, 2]


async def test_a_limit_of_attempts_is_the_users_alone(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """Two attempts are asked for, and the function has two, after a wait that took one more."""
    ran: list[int] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> None:
        ran.append(activity.info().attempt)
        raise RuntimeError("it failed")

    async with working(temporal_server.address, [work], max_concurrent_activities=1) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", attempts=2))
            await world.until_without_slot(1)
            assert not ran
        (found,) = await handle.result()
    assert found.startswith("RuntimeError")
    assert ran == [2, 3]


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
            await world.until_without_slot(1)
        await handle.result()
    assert details == [[], ["half", 50]]


@pytest.mark.parametrize("wait_in_slot", [None, 0.0], ids=["in slot", "without slot"])
async def test_who_waits_sends_heartbeats(
    wait_in_slot: float | None, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=wait_in_slot)
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
                found = (await handle.describe()).raw_description.pending_activities
                return any(
                    each.last_heartbeat_time.ToMicroseconds()
                    > each.last_started_time.ToMicroseconds() + HEARTBEAT * 1e6
                    for each in found
                )

            await workers.until(outlived_it)
        assert await handle.result() == [1 if wait_in_slot is None else 2]


@pytest.mark.parametrize("wait_in_slot", [None, 0.0], ids=["in slot", "without slot"])
async def test_a_workflow_that_ends_leaves_no_place_behind(
    wait_in_slot: float | None, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=wait_in_slot)
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


async def test_a_worker_that_shuts_down_leaves_its_waits_to_the_next(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    ran = asyncio.Event()

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> None:
        ran.set()

    async with store.semaphore("x", 1).acquire() as lease:
        async with working(temporal_server.address, [work]) as world:
            handle = await world.start(Step("work"))
            await world.until_without_slot(1)
        async with working(temporal_server.address, [work], queue=world.queue) as world:
            await waits_for(store, "x", 1)
            await lease.release()
            await handle.result()
    assert ran.is_set()


async def test_who_waits_without_a_slot_may_go_on_in_another_worker(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """The lease goes along: it is the one that was granted while nobody had a slot for it."""
    where: list[str] = []
    ours = LockInterceptor(wait_in_slot=0)

    def make(name: str) -> Any:
        @activity.defn(name="work")
        @needs_lock("x", backend=store)
        async def work() -> int:
            where.append(name)
            return current_lock().token

        return work

    lock = store.semaphore("x", 1)
    async with working(temporal_server.address, [make("first")], interceptors=[ours]) as world:
        async with lock.acquire() as lease:
            handle = await world.start(Step("work"))
            await waits_for(store, "x", 1)
            async with working(
                temporal_server.address, [make("second")], queue=world.queue, interceptors=[ours]
            ):
                await lease.release()
                (token,) = await handle.result()
    assert token == (await store.status("x", "semaphore")).last_token
    assert len(where) == 1


@pytest.mark.parametrize(
    "lost",
    [
        RPCError("no reply in time", RPCStatusCode.DEADLINE_EXCEEDED, b""),
        RPCError("said to a second try", RPCStatusCode.NOT_FOUND, b""),
        asyncio.CancelledError(),
    ],
    ids=["no reply", "not found", "cancelled"],
)
async def test_an_attempt_keeps_what_it_was_handed_though_the_reply_to_that_was_lost(
    lost: BaseException,
    temporal_server: TemporalServer,
    store: dibs.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, told, looked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    fail = AsyncActivityHandle.fail

    async def through_and_lost(*given: Any, **more: Any) -> None:
        await fail(*given, **more)
        await running.wait()
        told.set()
        raise lost

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0)
    async def work() -> int:
        running.set()
        await looked.wait()
        return current_lock().token

    monkeypatch.setattr(AsyncActivityHandle, "fail", through_and_lost)
    ours = LockInterceptor()
    async with working(temporal_server.address, [work], interceptors=[ours]) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work"))
            await waits_for(store, "x", 1)
        await told.wait()
        await until(lambda: not ours._station.room._tasks)
        (holder,) = (await store.status("x", "semaphore")).holders
        looked.set()
        assert await handle.result() == [holder.token]


async def test_what_could_not_be_handed_on_is_freed_where_the_server_has_refused_it(
    temporal_server: TemporalServer, store: dibs.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_given: Any, **_more: Any) -> None:
        raise RPCError("the details are too large", RPCStatusCode.INVALID_ARGUMENT, b"")

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0)
    async def work() -> None: ...

    monkeypatch.setattr(AsyncActivityHandle, "fail", refused)
    async with working(temporal_server.address, [work]) as world:
        lock = store.semaphore("x", 1)
        async with lock.acquire():
            await world.start(Step("work"))
            await waits_for(store, "x", 1)
        async with asyncio.timeout(20):  # less than it would be handed on for
            await (await lock.acquire()).release()


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
            if number % 4 == 0:
                raise RuntimeError("it fails")
            return number
        finally:
            del running[lock.slot]

    async with (
        working(temporal_server.address, [work], max_concurrent_activities=4) as world,
        working(temporal_server.address, [work], queue=world.queue, max_concurrent_activities=4),
        dibs.connect(redis_url) as client,
    ):
        steps = [Step("work", [number], attempts=2) for number in range(16)]
        found = await world.run(*steps)
        assert not (await client.status("x", "semaphore")).holders
    assert [each for each in found if isinstance(each, int)] == [n for n in range(16) if n % 4]
    assert runs == {number: 1 if number % 4 else 2 for number in range(16)}
    for slot in range(3):
        mine = [token for each, token in tokens if each == slot]
        assert mine == sorted(set(mine))
