"""A workflow that runs what a test tells it to, and workers with the interceptor."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import dibs
from dibs.temporal import LockInterceptor

WAIT = 60.0
"""Nothing in these tests may take longer, on however loaded a machine."""


SHUTDOWN = 15.0
"""Nor does a worker take longer to end, but for that mistake of the SDK."""


@dataclass
class Step:
    """One activity to be run."""

    activity: str
    args: list[Any] = field(default_factory=list[Any])
    schedule_to_close: float | None = 60.0
    start_to_close: float | None = None
    heartbeat: float | None = None
    attempts: int = 0
    local: bool = False
    queue: str | None = None


@workflow.defn
class RunsSteps:
    """Starts all of its steps at once, and returns what came of each; a signal cancels one."""

    def __init__(self) -> None:
        self._started: list[Any] = []

    @workflow.run
    async def run(self, steps: list[Step]) -> list[Any]:
        self._started = [start(step) for step in steps]
        results = await asyncio.gather(*self._started, return_exceptions=True)
        return [told(each) if isinstance(each, BaseException) else each for each in results]

    @workflow.signal
    def cancel(self, which: int) -> None:
        self._started[which].cancel()


def start(step: Step) -> Any:
    begin = workflow.start_local_activity if step.local else workflow.start_activity
    options: dict[str, Any] = {
        "args": step.args,
        "schedule_to_close_timeout": seconds(step.schedule_to_close),
        "start_to_close_timeout": seconds(step.start_to_close),
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(milliseconds=50),
            backoff_coefficient=1.0,
            maximum_attempts=step.attempts,
        ),
    }
    if not step.local:
        options["heartbeat_timeout"] = seconds(step.heartbeat)
        options["task_queue"] = step.queue
        options["cancellation_type"] = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    return begin(step.activity, **options)


def seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def told(error: BaseException) -> str:
    """The type and the words of what an activity failed with."""
    cause = error.__cause__ or error
    return f"{getattr(cause, 'type', None) or type(cause).__name__}: {cause}"


@dataclass
class World:
    client: Client
    queue: str

    async def start(self, *steps: Step) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            RunsSteps.run, list(steps), id=f"w-{uuid4()}", task_queue=self.queue
        )

    async def run(self, *steps: Step) -> list[Any]:
        return await asyncio.wait_for((await self.start(*steps)).result(), WAIT)

    async def until_tried_again(self, *handles: WorkflowHandle[Any, Any]) -> None:
        """Wait until an attempt of each has only waited, and has ended."""
        for handle in handles:
            async with asyncio.timeout(WAIT):
                while not any(each.attempt > 1 for each in await pending(handle)):
                    await asyncio.sleep(0.02)


@asynccontextmanager
async def working(
    address: str,
    activities: Sequence[Callable[..., Any]],
    *,
    interceptors: Sequence[Any] | None = None,
    executor: Executor | None = None,
    queue: str | None = None,
    **options: Any,
) -> AsyncGenerator[World]:
    """A worker for the steps, with our interceptor unless others are given."""
    client = await Client.connect(address)
    queue = queue or f"q-{uuid4()}"
    given = [LockInterceptor()] if interceptors is None else list(interceptors)
    locks = [each for each in given if isinstance(each, LockInterceptor)]
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[RunsSteps],
        activities=list(activities),
        interceptors=given,
        activity_executor=executor or ThreadPoolExecutor(8),
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=50,
        **{"graceful_shutdown_timeout": timedelta(seconds=0), **options},
    )
    running = asyncio.create_task(worker.run())
    try:
        yield World(client, queue)
    finally:
        # an attempt that ends as the worker does may keep it from ending (temporalio/sdk-rust#1537)
        await asyncio.wait((running, asyncio.create_task(worker.shutdown())), timeout=SHUTDOWN)
        running.cancel()
        for each in locks:
            await each.close()


async def pending(handle: WorkflowHandle[Any, Any]) -> Sequence[Any]:
    """The activities of a workflow that have not ended."""
    return list((await handle.describe()).raw_description.pending_activities)


async def waits_for(store: dibs.Client, name: str, count: int) -> None:
    """Wait until so many wait for it."""
    async with asyncio.timeout(WAIT):
        while (await store.status(name, "semaphore")).waiting != count:
            await asyncio.sleep(0.02)


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is the case."""
    async with asyncio.timeout(WAIT):
        while not true():
            await asyncio.sleep(0.01)
