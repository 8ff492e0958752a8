"""What happens to an activity whose lock is lost, and to a lock whose activity, worker or store is lost."""

import asyncio
import dataclasses
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

import dibs
from dibs.core.timing import trusted
from dibs.temporal import LockInterceptor, current_lock, needs_lock
from dibs.temporal.activity.decorator import need_of
from dibs.temporal.activity.semaphore import longest_hold, semaphore_for, times_of, ttl_for, whole
from dibs.testing import FaultProxy, expire
from tests.servers.redis import RedisServer
from tests.servers.temporal import TemporalServer
from tests.temporal.needs_lock_world import (
    RunsSteps,
    Step,
    holders,
    pending,
    until_attempt,
    waits_for,
    working,
)
from tests.temporal.workers import PATIENCE, poll, until

pytestmark = pytest.mark.once


@pytest.mark.parametrize("kind", ["task", "thread"])
async def test_a_revoked_lock_cancels_the_activity_and_fails_it_for_good(
    kind: str, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    seen: list[Any] = []

    def note(error: BaseException) -> None:
        lock = current_lock()
        seen.append((type(error).__name__, lock.lost, lock.reason, activity.is_cancelled()))

    @activity.defn(name="work")
    @needs_lock("x", backend=store)
    async def in_task() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            note(error)
            raise

    @activity.defn(name="work")
    @needs_lock("x", backend=store)
    def in_thread() -> None:
        try:
            while True:
                activity.wait_for_cancelled_sync(0.01)
        except BaseException as error:
            note(error)
            raise

    run: Any = in_task if kind == "task" else in_thread
    async with working(temporal_server.address, run) as world:
        handle = await world.start(Step("work"))
        await poll(lambda: store.revoke("x", reason="maintenance", kind="semaphore"))
        (found,) = await handle.result()
    assert found.startswith("LeaseLost: ")
    assert "maintenance" in found
    assert seen == [("CancelledError", True, "revoked", True)]


@pytest.mark.parametrize("kind", ["task", "thread"])
async def test_a_result_after_the_loss_counts_for_nothing_and_the_activity_is_tried_again(
    kind: str, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    begun = threading.Event()

    @activity.defn(name="work")
    @needs_lock("x", backend=store)
    async def in_task() -> str:
        if activity.info().attempt > 1:
            return "again"
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "swallowed"

    @activity.defn(name="work", no_thread_cancel_exception=True)
    @needs_lock("x", backend=store, ttl="300ms")
    def in_thread() -> str:
        if activity.info().attempt > 1:
            return "again"
        begun.set()
        activity.wait_for_cancelled_sync(PATIENCE)  # nothing interrupts it
        assert current_lock().lost
        return "too late"

    run: Any = in_task if kind == "task" else in_thread
    async with working(temporal_server.address, run) as world:
        handle = await world.start(Step("work"))
        await until(begun.is_set)
        await asyncio.to_thread(expire, store.semaphore("x", 1))
        assert await handle.result() == ["again"]


async def test_an_error_and_a_cancellation_pass_and_free_the_slot(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store)
    async def in_task() -> None:
        raise ValueError("bad input")

    @activity.defn
    @needs_lock("x", backend=store)
    def in_thread() -> None:
        raise ValueError("bad input")

    @activity.defn
    @needs_lock("x", backend=store)
    async def endless() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.05)

    async with working(temporal_server.address, in_task, in_thread, endless) as world:
        for found in await world.run(Step("in_task", attempts=1), Step("in_thread", attempts=1)):
            assert found.startswith("ValueError: ")
        assert not await holders(store)
        handle = await world.start(Step("endless", heartbeat=0.5))
        await poll(lambda: holders(store))
        await handle.signal(RunsSteps.cancel, 0)
        (found,) = await handle.result()
        assert found.startswith("CancelledError")
        assert not await holders(store)


# -- the lease's length ----------------------------------------------------------------------------


def info(**changes: Any) -> activity.Info:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    about: dict[str, Any] = {
        "scheduled_time": now,
        "started_time": now + timedelta(seconds=changes.pop("waited", 0)),
        "schedule_to_close_timeout": None,
        "start_to_close_timeout": None,
        "heartbeat_timeout": None,
    }
    spans = {name: timedelta(seconds=value) for name, value in changes.items()}
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
def test_a_lease_outlasts_the_attempt(given: dict[str, Any], left: float) -> None:
    """It counts from the start of the activity. No ttl is 0."""
    times = times_of(info(**given))
    assert times.left == pytest.approx(left)
    longest = longest_hold(times)
    assert longest is not None
    assert longest > left
    assert trusted(whole(longest)) >= longest - 1e-6
    assert 1.0 <= ttl_for(longest, 30.0) <= 30.0


def test_a_lease_is_short_and_renewed_or_one_for_the_whole_time() -> None:
    async def work() -> None: ...

    def config(about: activity.Info, **options: Any) -> Any:
        need = need_of(needs_lock("x", **options)(work))
        assert need is not None
        return semaphore_for(need, "x", about, "", dibs.connect("memory://")).config

    hour = info(schedule_to_close_timeout=3600)
    renewed, whole_time = config(hour), config(hour, auto_renew=False)
    assert (renewed.ttl, renewed.max_hold, renewed.auto_renew) == (30.0, 3636.0, True)
    assert trusted(whole_time.ttl) >= 3636
    assert not whole_time.auto_renew
    assert 6 < trusted(config(info(start_to_close_timeout=5)).ttl) + 1 < 8


async def test_it_is_renewed_while_the_activity_runs(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    @activity.defn
    @needs_lock("x", backend=redis_url, ttl="600ms")
    async def work() -> int:
        lock = current_lock()
        token = lock.token
        left = lock.remaining
        while left >= lock.remaining:  # until it has grown
            left = min(left, lock.remaining)
            await asyncio.sleep(0.01)
        await asyncio.sleep(left)  # without a renewal it would have expired
        lock.ensure()
        return lock.token - token

    async with working(temporal_server.address, work) as world:
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

    async with working(temporal_server.address, work) as world:
        assert await world.run(Step("work", heartbeat=1.0)) == [2]
    assert seen == [(True, "expired")]


async def test_activities_of_one_run_never_release_each_others_lock(
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
        working(temporal_server.address, work) as world,
    ):
        handle = await world.start(Step("work", [0]), Step("work", [1]))
        await both.wait()
        await poll(lambda: holders(client), lambda count: count == 1)
        (left,) = (await client.status("x", "semaphore")).holders
        go.set()
        owners = await handle.result()
    assert left.owner == owners[1] != owners[0]
    assert left.note == f"work of {handle.id}"


class LosesFirstResults(Interceptor):
    """The server does not learn of what the first attempt of an activity returned."""

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002  # its name there
    ) -> ActivityInboundInterceptor:
        return LosesFirstResult(next)


class LosesFirstResult(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        result = await self.next.execute_activity(input)
        if activity.info().attempt == 1:
            raise RuntimeError("the result was lost")
        return result


async def test_a_lost_result_leaks_no_slot(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    tokens: list[int] = []

    @activity.defn
    @needs_lock("x", capacity=2, backend=store)
    async def work() -> int:
        tokens.append(current_lock().token)
        return await holders(store)

    losing = [LosesFirstResults(), LockInterceptor()]
    async with working(temporal_server.address, work, interceptors=losing) as world:
        assert await world.run(Step("work")) == [1]
    assert len(set(tokens)) == 2
    assert not await holders(store)


# -- the way to the store, and the worker ----------------------------------------------------------


@pytest.mark.parametrize("bounded", [True, False])
async def test_an_outage_of_the_store_fails_no_workflow(
    bounded: bool, temporal_server: TemporalServer, redis_server: RedisServer, redis_url: str
) -> None:
    """A wait with an end goes on trying; one without ends with an error, and the next attempt tries."""
    step = Step("work") if bounded else Step("work", schedule_to_close=None, start_to_close=60.0)
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        url = proxy.url_for(redis_url)
        client = dibs.connect(url, connect_timeout="200ms", call_timeout="200ms")

        @activity.defn
        @needs_lock("x", backend=client)
        async def work() -> int:
            return activity.info().attempt

        async with client, working(temporal_server.address, work) as world:
            proxy.hang()
            handle = await world.start(step)
            await until(lambda: proxy.swallowed("to_server") > 0)
            if not bounded:
                await until_attempt(handle, 2)
                (waiting,) = await pending(handle)
                failure = waiting.last_failure.application_failure_info
                assert failure.type == "BackendUnavailable"
            proxy.heal()
            (attempt,) = await handle.result()
            assert not await holders(client)
    assert (attempt > 1) == (not bounded)


async def test_a_lost_reply_of_the_store_leaks_no_slot(
    temporal_server: TemporalServer, redis_server: RedisServer, redis_url: str
) -> None:
    """The store has granted, and the worker asks again: it gets the same lease, and no other."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        client = dibs.connect(proxy.url_for(redis_url), call_timeout="500ms")

        @activity.defn
        @needs_lock("x", capacity=2, backend=client)
        async def work() -> int:
            return await holders(store)

        async with (
            client,
            dibs.connect(redis_url) as store,
            working(temporal_server.address, work) as world,
        ):
            assert await world.run(Step("work")) == [1]  # it is connected
            proxy.drop_replies()
            handle = await world.start(Step("work"))
            await poll(lambda: holders(store))
            proxy.heal()
            assert await handle.result() == [1]
            assert not await holders(store)


@pytest.mark.multiprocess
async def test_a_worker_killed_while_it_holds_lets_the_next_run(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    @activity.defn
    @needs_lock("x", backend=redis_url, ttl="1.5s")
    async def work(number: int) -> int:
        return number

    async with working(temporal_server.address, work) as world:
        queue = f"{world.queue}-killed"
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.temporal.needs_lock_world"),
            *(temporal_server.address, queue, redis_url),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            killed = await world.start(Step("work", [1], queue=queue, heartbeat=1.0))
            assert child.stdout is not None
            assert await asyncio.wait_for(child.stdout.readline(), PATIENCE) == b"held\n"
            async with dibs.connect(redis_url) as client:
                handle = await world.start(Step("work", [2]))
                await waits_for(client, "x", 1)
        finally:
            child.kill()
            await child.wait()
        assert await handle.result() == [2]  # its lease has run out
        async with working(temporal_server.address, work, queue=queue):
            assert await killed.result() == [1]  # and its activity runs elsewhere
