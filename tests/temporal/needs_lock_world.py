"""A workflow that runs the activities that a test names, and workers with the lock interceptor.

As a program, a worker to be killed: `python -m tests.temporal.needs_lock_world ADDRESS QUEUE STORE`.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import dibs
from dibs.temporal import LockInterceptor, needs_lock
from tests.temporal.workers import PATIENCE, poll, unique

SHUTDOWN = 15.0
"""Seconds for a worker to end."""


@dataclass
class Step:
    """One activity to run. Times are in seconds."""

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
    """Starts all steps at once and returns their results, or errors as text. A signal cancels one."""

    def __init__(self) -> None:
        self._started: list[Any] = []

    @workflow.run
    async def run(self, steps: list[Step]) -> list[Any]:
        self._started = [_start(step) for step in steps]
        results = await asyncio.gather(*self._started, return_exceptions=True)
        return [_text(each) if isinstance(each, BaseException) else each for each in results]

    @workflow.signal
    def cancel(self, which: int) -> None:
        self._started[which].cancel()


def _start(step: Step) -> Any:
    begin = workflow.start_local_activity if step.local else workflow.start_activity
    options: dict[str, Any] = {
        "args": step.args,
        "schedule_to_close_timeout": _seconds(step.schedule_to_close),
        "start_to_close_timeout": _seconds(step.start_to_close),
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(milliseconds=50),
            backoff_coefficient=1.0,
            maximum_attempts=step.attempts,
        ),
    }
    if not step.local:
        options["heartbeat_timeout"] = _seconds(step.heartbeat)
        options["task_queue"] = step.queue
        options["cancellation_type"] = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    return begin(step.activity, **options)


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _text(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"{getattr(cause, 'type', None) or type(cause).__name__}: {cause}"


type Handle = WorkflowHandle[Any, list[Any]]


@dataclass
class World:
    client: Client
    queue: str

    async def start(self, *steps: Step) -> Handle:
        return await self.client.start_workflow(
            RunsSteps.run, list(steps), id=unique("steps"), task_queue=self.queue
        )

    async def run(self, *steps: Step) -> list[Any]:
        return await asyncio.wait_for((await self.start(*steps)).result(), PATIENCE)


@asynccontextmanager
async def working(
    address: str,
    *activities: Callable[..., Any],
    interceptors: Sequence[Any] | None = None,
    executor: Executor | None = None,
    queue: str | None = None,
    **options: Any,
) -> AsyncGenerator[World]:
    """A worker for the steps, with our interceptor unless others are given."""
    client = await Client.connect(address)
    queue = queue or unique("queue")
    given = [LockInterceptor()] if interceptors is None else list(interceptors)
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
        for each in given:
            if isinstance(each, LockInterceptor):
                await each.close()


async def pending(handle: Handle) -> Sequence[Any]:
    """The activities of a workflow that have not ended."""
    return list((await handle.describe()).raw_description.pending_activities)


async def until_attempt(handle: Handle, number: int) -> None:
    """Wait until an activity of a workflow is in this attempt, or in a later one."""
    await poll(lambda: pending(handle), lambda found: any(each.attempt >= number for each in found))


async def waits_for(store: dibs.Client, name: str, count: int) -> None:
    """Wait until so many wait for it."""
    await poll(lambda: store.status(name, "semaphore"), lambda status: status.waiting == count)


async def holders(store: dibs.Client, name: str = "x") -> int:
    return len((await store.status(name, "semaphore")).holders)


@activity.defn(name="work")
@needs_lock("x", ttl="1.5s")
async def hold_for_ever(number: int) -> int:
    print("held", flush=True)
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.1)


async def main(address: str, queue: str, store: str) -> None:
    client = await Client.connect(address, interceptors=[LockInterceptor(backend=store)])
    await Worker(client, task_queue=queue, activities=[hold_for_ever]).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
