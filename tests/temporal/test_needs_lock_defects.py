"""Each defect found in the document's `@needs_lock`: its way has it, ours hasn't. Numbers as in the notes."""

import asyncio
import time
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Replayer,
    UnsandboxedWorkflowRunner,
)

import dibs
from dibs.testing import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.temporal import TemporalServer
from tests.temporal import needs_lock_world, workers
from tests.temporal.document import MINUTE, TAKE
from tests.temporal.needs_lock_ways import Way
from tests.temporal.needs_lock_world import RunsSteps, Step, waits_for

pytestmark = pytest.mark.once


@pytest.fixture
def address(temporal_server: TemporalServer) -> str:
    return temporal_server.address


@pytest.fixture(params=["document", "ours"])
def way(request: pytest.FixtureRequest, redis_url: str) -> Way:
    """Both, one after the other, over an empty Redis."""
    return Way(request.param, redis_url)


async def pending(handle: WorkflowHandle[Any, Any]) -> list[Any]:
    """The activities that a workflow waits for, as the server tells them."""
    return list((await handle.describe()).raw_description.pending_activities)


async def until_it_pauses(handle: WorkflowHandle[Any, Any], attempt: int = 2) -> Any:
    """Until the document's waiter has tried, and waits for its next try."""
    found: list[Any] = []

    async def tried() -> bool:
        found[:] = [each for each in await pending(handle) if each.activity_type.name == TAKE]
        return bool(found) and found[0].attempt >= attempt

    await workers.until(tried)
    return found[0]


async def until_held(way: Way, name: str, count: int) -> None:
    async def so_many() -> bool:
        return await way.held(name) == count

    await workers.until(so_many)


async def test_1_where_nobody_has_installed_it(way: Way, address: str) -> None:
    """The document's is silent, and runs it without its lock."""

    @activity.defn
    @way.needs("x")
    async def in_task() -> int:
        return await way.held("x")

    @activity.defn
    @way.needs("x")
    def in_thread() -> int:
        return asyncio.run(way.held("x"))

    async with way.working(address, in_task, in_thread, installed=False) as world:
        found = await world.run(Step("in_task"), Step("in_thread"))
    if not way.ours:
        assert found == [0, 0]
        return
    for each in found:
        assert each.startswith("LockNotInstalled: ")
        assert "install DibsPlugin" in each


async def test_2_what_it_returned_reaches_its_workflow(way: Way, address: str) -> None:
    """The document's later release awaits it twice; so nobody installs that."""
    way.awaits_twice = True
    ran: list[int] = []
    both = asyncio.Barrier(2)

    @activity.defn
    @way.needs("x", 2)
    async def work(number: int) -> int:
        ran.append(number)
        await both.wait()
        return number

    async with way.working(address, work) as world:
        found = await world.run(Step("work", [1]), Step("work", [2]))
    assert sorted(ran) == [1, 2]
    if way.ours:
        assert found == [1, 2]
    else:
        assert all(each.startswith("TypeError: ") for each in found)
        assert all("await" in each for each in found)


async def test_3_a_free_slot_is_found_at_once(way: Way, address: str) -> None:
    """The document's draws one of five by lot, and after a miss it pauses for a minute."""
    begun: list[int] = []
    go = asyncio.Event()

    @activity.defn
    @way.needs("x", 5)
    async def work(number: int) -> int:
        begun.append(number)
        if number < 4:
            await go.wait()
        return activity.info().attempt

    async with way.working(address, work) as world:
        holders = await world.start(*(Step("work", [number]) for number in range(4)))
        await needs_lock_world.until(lambda: len(begun) == 4)
        before = way.locks.tries
        assert await world.run(Step("work", [4])) == [1]
        misses = way.locks.tries - before - 1
        assert way.ours or misses > 0
        go.set()
        await holders.result()


async def test_4_its_lock_lasts_for_as_long_as_it_may_run(way: Way, address: str) -> None:
    """The document's is counted in whole seconds, from before the activity is scheduled."""

    @activity.defn
    @way.needs("x")
    async def work() -> float:
        info = activity.info()
        assert info.schedule_to_close_timeout is not None
        ends = info.scheduled_time + info.schedule_to_close_timeout
        may_run = ends.timestamp() - time.time()
        return way.remaining("x:0") - may_run

    async with way.working(address, work) as world:
        (margin,) = await world.run(Step("work", schedule_to_close=5.9))
    assert (margin > 0) == way.ours


async def test_4_less_than_a_second_is_enough_for_a_lock(way: Way, address: str) -> None:
    @activity.defn
    @way.needs("x")
    async def work() -> float:
        return way.remaining("x:0")

    async with way.working(address, work) as world:
        (left,) = await world.run(Step("work", schedule_to_close=0.9))
    if way.ours:
        assert left > 0.9
    else:
        assert "invalid expire time" in left


class LosesFirstResults(Interceptor):
    """What the first attempt of each activity did isn't known to the server."""

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002  # its name there
    ) -> ActivityInboundInterceptor:
        return _LosesFirstResult(next)


class _LosesFirstResult(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        result = await self.next.execute_activity(input)
        if activity.info().attempt == 1:
            raise RuntimeError("the result was lost")
        return result


async def test_5_a_lost_result_leaks_no_slot(way: Way, address: str) -> None:
    """The document's next attempt doesn't know its own lock again, and takes another one."""

    @activity.defn
    @way.needs("x", 2)
    async def work() -> int:
        return await way.held("x")

    async with way.working(address, work, also=LosesFirstResults()) as world:
        assert await world.run(Step("work")) == [1 if way.ours else 2]
    assert await way.held("x") == (0 if way.ours else 1)


async def test_6_a_late_release_leaves_a_sibling_s_lock_alone(way: Way, address: str) -> None:
    """Activities of one run are one owner to the document."""
    order: list[int] = []
    first_in, second_in, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @activity.defn
    @way.needs("x")
    async def work(number: int) -> str:
        order.append(number)
        if len(order) == 1:
            first_in.set()
            await second_in.wait()
            return "after its lock's end"
        second_in.set()
        await go.wait()
        return "done"

    async with way.working(address, work) as world:
        handle = await world.start(Step("work", [0]), Step("work", [1]))
        await first_in.wait()
        await way.end("x")
        await second_in.wait()
        if way.ours:

            async def alone() -> bool:
                return len(await pending(handle)) == 1

            await workers.until(alone)
            assert await way.held("x") == 1
        else:
            await until_held(way, "x", 0)  # while the second works on
        go.set()
        found = await handle.result()
    assert found[order[1]] == "done"


async def test_7_who_lost_its_lock_is_told_and_has_no_success(way: Way, address: str) -> None:
    """Two of the document's work at once, and nobody hears of it."""
    begun = [asyncio.Event(), asyncio.Event()]
    go = asyncio.Event()

    @activity.defn
    @way.needs("x")
    async def work(number: int) -> str:
        begun[number].set()
        await go.wait()
        return "done"

    async with way.working(address, work) as world:
        first = await world.start(Step("work", [0]))
        await begun[0].wait()
        await way.end("x")
        if way.ours:
            (found,) = await first.result()
            assert found.startswith("LeaseLost: ")
        second = await world.start(Step("work", [1]))
        await begun[1].wait()
        if not way.ours:
            assert len(await pending(first)) == 1  # at work
        go.set()
        assert await second.result() == ["done"]
        if not way.ours:
            assert await first.result() == ["done"]


async def test_7_who_came_first_is_served_first(way: Way, address: str) -> None:
    """The document's sleeps its minute out, while the lock is free and while others take it."""
    way.pause = MINUTE
    order: list[int] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @activity.defn
    @way.needs("x")
    async def work(number: int) -> None:
        order.append(number)
        begun.set()
        await go.wait()

    async with way.working(address, work) as world, dibs.connect(way.url) as client:
        first = await world.start(Step("work", [0]))
        await begun.wait()
        patient = await world.start(Step("work", [1], schedule_to_close=300.0))
        await (waits_for(client, "x", 1) if way.ours else until_it_pauses(patient))
        go.set()
        await first.result()
        await world.run(Step("work", [2]))
        if way.ours:
            await patient.result()
            assert order == [0, 1, 2]
            return
        assert order == [0, 2]
        assert await way.held("x") == 0
        waiter = await until_it_pauses(patient)
        assert waiter.scheduled_time.seconds - waiter.last_attempt_complete_time.seconds >= 59
        await patient.terminate()


async def test_8_it_doesn_t_wait_for_longer_than_its_activity_may_take(
    way: Way, address: str
) -> None:
    """The document's waits for ever, unless its whole workflow has an end."""
    way.pause = 0.3  # 1 / 200 of its minute
    begun, go = asyncio.Event(), asyncio.Event()

    @activity.defn
    @way.needs("x")
    async def work(number: int) -> None:
        begun.set()
        await go.wait()

    async with way.working(address, work) as world:
        first = await world.start(Step("work", [0]))
        await begun.wait()
        late = await world.start(Step("work", [1], schedule_to_close=1.0))
        if way.ours:
            (found,) = await late.result()
            assert found.startswith("AcquireTimeout: ")
        else:
            waiter = await until_it_pauses(late, attempt=5)  # four pauses are more than a second
            assert not waiter.HasField("expiration_time")
            await late.terminate()
        go.set()
        await first.result()


async def test_8_a_blip_of_the_store_fails_no_workflow(
    way: Way, address: str, redis_server: RedisServer
) -> None:
    @activity.defn
    @way.needs("x")
    async def work() -> str:
        return "done"

    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        async with way.over(proxy.url_for(way.url)).working(address, work) as world:
            proxy.reset_after(1, "to_client")
            handle = await world.start(Step("work"))
            await needs_lock_world.until(lambda: proxy.resets > 0)
            proxy.heal()
            (found,) = await handle.result()
    assert (found == "done") == way.ours
    assert ("no lock: " in found) != way.ours


async def test_9_it_can_be_cancelled(way: Way, address: str) -> None:
    """The document makes a coroutine of what `start_activity` returns, and a cancel of it an error."""
    begun, go = asyncio.Event(), asyncio.Event()

    @activity.defn
    @way.needs("x")
    async def work() -> None:
        begun.set()
        while not go.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.02)

    async with way.working(address, work) as world:
        handle = await world.start(Step("work", heartbeat=1.0))
        await begun.wait()
        await handle.signal(RunsSteps.cancel, 0)
        if way.ours:
            (found,) = await handle.result()
            assert found.startswith("CancelledError")
            return

        async def failed() -> bool:
            return "no attribute 'cancel'" in await why_its_task_failed(handle)

        await workers.until(failed)
        go.set()
        await handle.terminate()


async def why_its_task_failed(handle: WorkflowHandle[Any, Any]) -> str:
    """What the last failed task of a workflow says, which is tried again for ever."""
    said = ""
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            said = event.workflow_task_failed_event_attributes.failure.message
    return said


async def test_9_a_local_activity_is_locked_too(way: Way, address: str) -> None:
    @activity.defn
    @way.needs("x")
    async def work() -> int:
        return await way.held("x")

    async with way.working(address, work) as world:
        assert await world.run(Step("work", local=True)) == [1 if way.ours else 0]


async def test_10_an_activity_hosted_elsewhere_is_locked_there(way: Way, address: str) -> None:
    """The workflow's worker knows neither the function nor that it needs a lock."""

    @activity.defn
    @way.needs("x")
    async def work() -> int:
        return await way.held("x")

    async with way.working(address, work) as there, way.working(address) as here:
        found = await here.run(Step("work", queue=there.queue))
    assert found == [1 if way.ours else 0]


async def test_11_a_running_workflow_does_not_notice_that_it_is_installed(
    way: Way, address: str
) -> None:
    """Nor that it isn't any more; the document's has commands of its own, and no patch for them."""

    @activity.defn
    @way.needs("x")
    async def work() -> None: ...

    histories: dict[bool, WorkflowHistory] = {}
    for installed in (True, False):
        async with way.working(address, work, installed=installed) as world:
            handle = await world.start(Step("work"))
            await handle.result()
            histories[installed] = await handle.fetch_history()
    for installed, history in histories.items():
        for now in (True, False):
            replayer = Replayer(
                workflows=[RunsSteps],
                interceptors=[way.interceptor(work)] if now else [],
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
            result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
            assert (result.replay_failure is None) == (way.ours or now == installed)
    # what one activity takes without a lock
    assert (len(histories[True].events) == 11) == way.ours
    assert len(histories[False].events) == 11


async def test_12_work_that_waits_for_a_worker_holds_nothing(way: Way, address: str) -> None:
    """The document's takes the lock first, and then has its work queued."""

    @activity.defn
    @way.needs("x")
    async def work() -> None: ...

    async with way.working(address, known=work) as world:
        handle = await world.start(Step("work", queue="nobody serves this"))

        async def queued() -> bool:
            return [each.activity_type.name for each in await pending(handle)] == ["work"]

        await workers.until(queued)
        assert await way.held("x") == (0 if way.ours else 1)
        await handle.terminate()
