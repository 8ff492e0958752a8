"""What becomes of an activity whose lock is lost, and of a lock whose activity or store is."""

import asyncio
import dataclasses
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment

import dibs
from dibs.core.timing import trusted
from dibs.temporal import current_lock, needs_lock
from dibs.temporal.activity.decorator import need_of
from dibs.temporal.activity.semaphore import longest_hold, semaphore_for, times_of, ttl_for, whole
from dibs.testing import FaultProxy, expire
from tests.servers.redis import RedisServer
from tests.servers.temporal import TemporalServer
from tests.temporal.needs_lock_world import WAIT, RunsSteps, Step, until, waits_for, working

pytestmark = pytest.mark.once


async def test_7_a_revoked_lock_cancels_the_activity_for_good(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    begun, seen = asyncio.Event(), []

    @activity.defn
    @needs_lock("x", backend=store)
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lock = current_lock()
            seen.append((lock.lost, lock.reason, activity.is_cancelled()))
            raise

    async with working(temporal_server.address, [work]) as world:
        handle = await world.start(Step("work"))
        await begun.wait()
        assert await store.revoke("x", reason="maintenance", kind="semaphore") == 1
        (found,) = await handle.result()
    assert found.startswith("LeaseLost: ")
    assert "maintenance" in found
    assert seen == [(True, "revoked", True)]


async def test_7_a_revoked_lock_interrupts_a_thread(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    begun, seen = threading.Event(), []

    @activity.defn
    @needs_lock("x", backend=store)
    def work() -> None:
        begun.set()
        try:
            while True:
                activity.wait_for_cancelled_sync(0.01)
        except BaseException as error:
            seen.append((type(error).__name__, current_lock().lost))
            raise

    async with working(temporal_server.address, [work]) as world:
        handle = await world.start(Step("work"))
        await until(begun.is_set)
        await store.revoke("x", reason="maintenance", kind="semaphore")
        (found,) = await handle.result()
    assert found.startswith("LeaseLost: ")
    assert seen == [("CancelledError", True)]


async def test_7_what_was_done_after_the_loss_is_no_success(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """It is tried again, in turn, as nobody meant it to end."""
    begun = threading.Event()

    @activity.defn(no_thread_cancel_exception=True)
    @needs_lock("x", backend=store, ttl="300ms")
    def work() -> str:
        lock = current_lock()
        if not begun.is_set():
            begun.set()
            activity.wait_for_cancelled_sync(WAIT)  # nothing interrupts it
            assert lock.lost
            assert activity.is_cancelled()
            return "too late"
        return f"attempt {activity.info().attempt}"

    async with working(temporal_server.address, [work]) as world:
        handle = await world.start(Step("work"))
        await until(begun.is_set)
        await asyncio.to_thread(expire, store.semaphore("x", 1))
        assert await handle.result() == ["attempt 2"]


async def test_7_a_body_of_its_own_mind_is_not_a_success_either(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """Whoever swallows the cancellation has its result thrown away all the same."""
    begun: list[int] = []

    @activity.defn
    @needs_lock("x", backend=store)
    async def work() -> str:
        begun.append(activity.info().attempt)
        if len(begun) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "swallowed"
        return "again"

    async with working(temporal_server.address, [work]) as world:
        handle = await world.start(Step("work"))
        await until(lambda: bool(begun))
        await asyncio.to_thread(expire, store.semaphore("x", 1))
        assert await handle.result() == ["again"]
    assert begun == [1, 2]


async def test_the_activitys_own_error_passes_and_the_slot_is_free(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store)
    async def work() -> None:
        raise ValueError("bad input")

    @activity.defn
    @needs_lock("x", backend=store)
    def in_thread() -> None:
        raise ValueError("bad input")

    async with working(temporal_server.address, [work, in_thread]) as world:
        for found in await world.run(Step("work", attempts=1), Step("in_thread", attempts=1)):
            assert found.startswith("ValueError: ")
        assert not (await store.status("x", "semaphore")).holders


async def test_a_cancelled_activity_frees_its_slot(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    begun = asyncio.Event()

    @activity.defn
    @needs_lock("x", backend=store)
    async def work() -> None:
        begun.set()
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.05)

    async with working(temporal_server.address, [work]) as world:
        handle = await world.start(Step("work", heartbeat=0.5))
        await begun.wait()
        await handle.signal(RunsSteps.cancel, 0)
        (found,) = await handle.result()
        assert found.startswith("CancelledError")
        assert not (await store.status("x", "semaphore")).holders


# -- the lease's length -------------------------------------------------------------------------------


def info(**changes: Any) -> activity.Info:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    about: dict[str, Any] = {
        "scheduled_time": now,
        "started_time": now,
        "schedule_to_close_timeout": None,
        "start_to_close_timeout": None,
        "heartbeat_timeout": None,
    }
    spans = {k: timedelta(seconds=v) for k, v in changes.items() if k.endswith("_timeout")}
    if "waited" in changes:
        about["started_time"] = now + timedelta(seconds=changes["waited"])
    return dataclasses.replace(ActivityEnvironment.default_info(), **(about | spans))


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"schedule_to_close_timeout": 600}, 600),
        ({"schedule_to_close_timeout": 600, "waited": 100}, 500),
        ({"schedule_to_close_timeout": 600, "waited": 700}, 0),
        ({"start_to_close_timeout": 60, "waited": 100}, 60),
        ({"schedule_to_close_timeout": 600, "start_to_close_timeout": 60}, 60),
        ({"schedule_to_close_timeout": 0.4}, 0.4),
    ],
)
def test_4_a_lease_outlasts_the_attempt(given: dict[str, Any], left: float) -> None:
    """It counts from when the activity starts, not from when somebody asked for a lock; none is of 0 s."""
    times = times_of(info(**given))
    assert times.left == pytest.approx(left)
    longest = longest_hold(times)
    assert longest is not None
    assert longest > left
    assert trusted(whole(longest)) >= longest - 1e-6
    assert 1.0 <= ttl_for(longest, 30.0) <= 30.0


def test_4_it_is_short_and_renewed_or_one_for_the_whole_time() -> None:
    async def work() -> None: ...

    client = dibs.connect("memory://")
    about = info(schedule_to_close_timeout=3600)
    renewed, short, whole_time = (
        semaphore_for(need, "x", each, "", client)
        for need, each in [
            (need_of(needs_lock("x")(work)), about),
            (need_of(needs_lock("x")(work)), info(start_to_close_timeout=5)),
            (need_of(needs_lock("x", auto_renew=False)(work)), about),
        ]
        if need is not None
    )
    assert (renewed.config.ttl, renewed.config.max_hold) == (30.0, 3636.0)
    assert isinstance(short.config.ttl, float)
    assert 6 < trusted(short.config.ttl) + 1 < 8
    assert isinstance(whole_time.config.ttl, float)
    assert trusted(whole_time.config.ttl) >= 3636
    assert not whole_time.config.auto_renew


async def test_it_is_renewed_while_the_activity_runs(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    @activity.defn
    @needs_lock("x", backend=redis_url, ttl="600ms")
    async def work() -> int:
        lock = current_lock()
        token = lock.token
        left = lock.remaining
        while left >= lock.remaining:  # it stands for longer than it did
            left = min(left, lock.remaining)
            await asyncio.sleep(0.01)
        await asyncio.sleep(left)  # without that it would be over
        lock.ensure()
        return lock.token - token

    async with working(temporal_server.address, [work]) as world:
        assert await world.run(Step("work")) == [0]


async def test_an_activity_that_sends_no_heartbeats_loses_its_lock(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """The server has given up on it, and may have begun another attempt."""
    seen: list[Any] = []

    @activity.defn
    @needs_lock("x", backend=store, ttl="500ms")
    async def work() -> int:
        attempt = activity.info().attempt
        if attempt > 1:
            return attempt
        activity.heartbeat()
        try:
            return int(await asyncio.Event().wait())
        finally:
            seen.append((current_lock().lost, current_lock().reason))
            with pytest.raises(dibs.LeaseLost, match="no heartbeat"):
                current_lock().ensure()

    async with working(temporal_server.address, [work]) as world:
        assert await world.run(Step("work", heartbeat=1.0)) == [2]
    assert seen == [(True, "expired")]


# -- the way to the store, and the worker -------------------------------------------------------------


async def test_5_a_lost_reply_leaks_no_slot(
    temporal_server: TemporalServer, redis_server: RedisServer, redis_url: str
) -> None:
    """The store has granted, and nobody heard of it: the same lease is recognised, and no other taken."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:

        @activity.defn
        @needs_lock(max_locks=2, lock_name="x", backend=proxy.url_for(redis_url))
        async def work() -> int:
            async with dibs.connect(redis_url) as client:
                return len((await client.status("x", "semaphore")).holders)

        async with working(temporal_server.address, [work]) as world:
            assert await world.run(Step("work")) == [1]
            proxy.drop_replies()
            handle = await world.start(Step("work"))
            async with dibs.connect(redis_url) as client:
                await until_async(lambda: _holders(client), 1)
                proxy.heal()
                assert await handle.result() == [1]
                await until_async(lambda: _holders(client), 0)


async def _holders(client: dibs.Client) -> int:
    return len((await client.status("x", "semaphore")).holders)


async def until_async(count: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(WAIT):
        while await count() != wanted:
            await asyncio.sleep(0.02)


async def test_6_siblings_of_a_run_never_release_each_others_lock(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    go, both = asyncio.Event(), asyncio.Barrier(3)

    @activity.defn
    @needs_lock("x", capacity=2, backend=redis_url)
    async def work(number: int) -> str:
        await both.wait()
        if number:
            await go.wait()
            current_lock().ensure()
        return current_lock().owner

    async with (
        dibs.connect(redis_url) as client,
        working(temporal_server.address, [work]) as world,
    ):
        handle = await world.start(Step("work", [0]), Step("work", [1]))
        await both.wait()
        await until_async(lambda: _holders(client), 1)
        (left,) = (await client.status("x", "semaphore")).holders
        go.set()
        owners = await handle.result()
    assert left.owner == owners[1] != owners[0]


@pytest.mark.parametrize("bounded", [True, False])
async def test_8_a_store_that_is_away_for_a_while_fails_no_workflow(
    bounded: bool, temporal_server: TemporalServer, redis_server: RedisServer, redis_url: str
) -> None:
    """A wait with an end goes on trying; one without ends, and the next attempt tries."""
    step = Step("work") if bounded else Step("work", schedule_to_close=None, start_to_close=60.0)
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        url = proxy.url_for(redis_url)
        client = dibs.connect(url, connect_timeout="200ms", call_timeout="200ms")

        @activity.defn
        @needs_lock("x", backend=client)
        async def work() -> int:
            return activity.info().attempt

        async with client, working(temporal_server.address, [work]) as world:
            proxy.hang()
            handle = await world.start(step)
            await until(lambda: proxy.swallowed("to_server") > 0)
            if not bounded:
                await until_async(lambda: _attempts(handle), 2)
            proxy.heal()
            (attempt,) = await handle.result()
            assert await _holders(client) == 0
    assert (attempt > 1) == (not bounded)


async def _attempts(handle: Any) -> int:
    found = (await handle.describe()).raw_description.pending_activities
    return min(found[0].attempt, 2) if found else 0


@pytest.mark.multiprocess
async def test_a_worker_killed_while_it_holds_lets_the_next_run(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    @activity.defn
    @needs_lock("x", backend=redis_url, ttl="1.5s")
    async def work(number: int) -> int:
        return number

    async with working(temporal_server.address, [work]) as world:
        queue = f"{world.queue}-killed"
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.temporal.needs_lock_killed"),
            *(temporal_server.address, queue, redis_url),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            killed = await world.start(Step("work", [1], queue=queue, heartbeat=1.0))
            assert child.stdout is not None
            assert await asyncio.wait_for(child.stdout.readline(), WAIT) == b"held\n"
            async with dibs.connect(redis_url) as client:
                handle = await world.start(Step("work", [2]))
                await waits_for(client, "x", 1)
        finally:
            child.kill()
            await child.wait()
        assert await handle.result() == [2]  # its lease has run out
        async with working(temporal_server.address, [work], queue=queue):
            assert await killed.result() == [1]  # and its activity runs elsewhere
