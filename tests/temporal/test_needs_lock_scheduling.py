"""`@needs_lock` and the way activities are scheduled: the lock is taken where and when one runs."""

from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowHistory
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Replayer,
    UnsandboxedWorkflowRunner,
)

import dibs
from dibs.temporal import LockInterceptor, needs_lock
from tests.servers.temporal import TemporalServer
from tests.temporal.needs_lock_world import RunsSteps, Step, pending, working
from tests.temporal.workers import until

pytestmark = pytest.mark.once

URL = "memory://needs-lock-scheduling"


async def held() -> int:
    async with dibs.connect(URL) as client:
        return len((await client.status("x", "semaphore")).holders)


@activity.defn
@needs_lock(max_locks=2, lock_name="x")
async def work() -> int:
    return await held()


def locks() -> LockInterceptor:
    return LockInterceptor(backend=URL)


@pytest.mark.parametrize("of_a_thread", [False, True])
async def test_1_where_nobody_has_installed_it(
    temporal_server: TemporalServer, of_a_thread: bool
) -> None:
    @activity.defn(name="work")
    @needs_lock(max_locks=1, lock_name="x")
    def in_thread() -> None:
        raise AssertionError("it ran without its lock")

    run: Any = in_thread if of_a_thread else work
    async with working(temporal_server.address, [run], interceptors=[]) as world:
        (found,) = await world.run(Step("work"))
    assert found.startswith("LockNotInstalled: ")
    assert "install DibsPlugin" in found


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


async def test_5_a_lost_result_leaks_no_slot(temporal_server: TemporalServer) -> None:
    interceptors = [locks(), LosesFirstResults()]
    async with working(temporal_server.address, [work], interceptors=interceptors) as world:
        assert await world.run(Step("work")) == [1]
        assert await held() == 0


async def test_10_an_activity_hosted_elsewhere_is_locked_there(
    temporal_server: TemporalServer,
) -> None:
    """The workflow's worker knows neither the function nor that it needs a lock."""
    address = temporal_server.address
    async with (
        working(address, [work], interceptors=[locks()]) as there,
        working(address, [], interceptors=[locks()]) as here,
    ):
        assert await here.run(Step("work", queue=there.queue)) == [1]


async def test_11_a_running_workflow_does_not_notice_that_it_is_installed(
    temporal_server: TemporalServer,
) -> None:
    """Nor that it isn't any more."""

    @activity.defn(name="work")
    async def plain() -> None: ...

    histories: list[WorkflowHistory] = []
    for run, interceptors in ((work, [locks()]), (plain, [])):
        served: list[Any] = [run]
        async with working(temporal_server.address, served, interceptors=interceptors) as world:
            handle = await world.start(Step("work"))
            await handle.result()
            histories.append(await handle.fetch_history())
    assert [len(each.events) for each in histories] == [11, 11]
    for history in histories:
        for interceptors in ([locks()], []):
            replayer = Replayer(
                workflows=[RunsSteps],
                interceptors=interceptors,
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
            await replayer.replay_workflow(history)


async def test_12_work_that_waits_for_a_worker_holds_nothing(
    temporal_server: TemporalServer,
) -> None:
    address = temporal_server.address
    async with working(address, [work], interceptors=[locks()]) as world:
        handle = await world.start(Step("work", queue="nobody serves this"))

        async def queued() -> bool:
            return len(await pending(handle)) == 1

        await until(queued)
        assert await held() == 0
        await handle.terminate()
