"""`@needs_lock` on a real Temporal server: what an activity knows of its lock, and how it waits."""

import asyncio
import multiprocessing
import re
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import SharedStateManager, UnsandboxedWorkflowRunner, Worker

import dibs
from dibs.temporal import DibsPlugin, LockInterceptor, current_lock, needs_lock
from dibs.testing import FaultProxy, expire
from tests.servers.redis import RedisServer
from tests.servers.temporal import TemporalServer
from tests.temporal.sandbox_flows import Reports, report
from tests.temporal.workers import PATIENCE, poll, unique, until

pytestmark = pytest.mark.once


@pytest.fixture
async def store() -> AsyncIterator[dibs.Client]:
    """A store in memory, of its own."""
    async with dibs.connect("memory://") as client:
        yield client


# -- a workflow that runs the activities that a test names, and workers with the lock interceptor ---

SHUTDOWN = 2.0
"""Seconds for a worker to end. An attempt that ends as it does may keep it (temporalio/sdk-rust#1537)."""


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
        options["cancellation_type"] = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    return begin(step.activity, **options)


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _text(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"{getattr(cause, 'type', None) or type(cause).__name__}: {cause}"


def locked(backend: Any, *, called: str | None = None, **options: Any) -> Callable[[Any], Any]:
    """`@activity.defn` and `@needs_lock("x")`."""
    lock = needs_lock("x", backend=backend, **options)
    return lambda function: activity.defn(name=called)(lock(function))


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
    queue, threads = queue or unique("queue"), ThreadPoolExecutor(8)
    given = [LockInterceptor()] if interceptors is None else list(interceptors)
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[RunsSteps],
        activities=list(activities),
        interceptors=given,
        activity_executor=executor or threads,
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=50,
        **{"graceful_shutdown_timeout": timedelta(seconds=0), **options},
    )
    running = asyncio.create_task(worker.run())
    try:
        yield World(client, queue)
    finally:
        await asyncio.wait((running, asyncio.create_task(worker.shutdown())), timeout=SHUTDOWN)
        running.cancel()
        threads.shutdown(wait=False)
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


# -- activities ------------------------------------------------------------------------------------


def lock_seen() -> dict[str, Any]:
    lock = current_lock()
    lock.ensure("1s")
    return {"key": lock.key, "owner": lock.owner, "token": lock.token, "lost": lock.lost}


@activity.defn
@needs_lock("in-{where}", capacity=2)
async def in_task(where: str) -> dict[str, Any]:
    return lock_seen()


@needs_lock("in-{where}", capacity=2)
@activity.defn
def in_thread(where: str) -> dict[str, Any]:
    return lock_seen()


@activity.defn
@needs_lock("in-{where}", capacity=2)
def in_process(where: str) -> dict[str, Any]:
    lock = current_lock()
    lock.ensure()
    with pytest.raises(RuntimeError, match="process pool"):
        assert lock.remaining
    return {"key": lock.key, "token": lock.token}


class Objects:
    @activity.defn
    @needs_lock("in-{where}", capacity=2)
    async def in_method(self, where: str) -> dict[str, Any]:
        return lock_seen()


@activity.defn(name="in_object")
class CallableObject:
    @needs_lock("in-{where}", capacity=2)
    async def __call__(self, where: str) -> dict[str, Any]:
        return lock_seen()


# -- what an activity knows of its lock ------------------------------------------------------------


async def test_in_tasks_threads_and_methods(
    temporal_server: TemporalServer, tmp_path: Path
) -> None:
    ours = LockInterceptor(application="shop", backend=f"sqlite:///{tmp_path / 'leases.db'}")
    activities = (in_task, in_thread, Objects().in_method, CallableObject())
    async with working(temporal_server.address, *activities, interceptors=[ours]) as world:
        kinds = ("task", "thread", "method", "object")
        handle = await world.start(*(Step(f"in_{each}", ["x"]) for each in kinds))
        found = await handle.result()
    assert len({each["token"] for each in found}) == 4
    for number, each in enumerate(found, start=1):
        assert each["key"] in ("shop:in-x:0", "shop:in-x:1")
        assert each["owner"] == f"shop:{handle.result_run_id}:{number}"
        assert not each["lost"]


async def test_in_a_pool_of_processes(temporal_server: TemporalServer, store: dibs.Client) -> None:
    spawning = multiprocessing.get_context("spawn")
    with spawning.Manager() as manager, ProcessPoolExecutor(1, mp_context=spawning) as pool:
        async with working(
            temporal_server.address,
            in_process,
            interceptors=[LockInterceptor(backend=store)],
            executor=pool,
            shared_state_manager=SharedStateManager.create_from_multiprocessing(
                manager, ThreadPoolExecutor(1)
            ),
        ) as world:
            (found,) = await world.run(Step("in_process", ["pool"]))
    assert found["key"] == "in-pool:0"
    assert found["token"] > 0


async def test_the_application_comes_from_the_environment_the_interceptor_or_the_decorator(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    @activity.defn
    @needs_lock("x", application="billing")
    async def theirs() -> dict[str, Any]:
        return lock_seen()

    @activity.defn
    @needs_lock("x", application="")
    async def without() -> dict[str, Any]:
        return lock_seen()

    activities = (in_task, theirs, without)
    monkeypatch.setenv("APPLICATION_NAME", "crawler")
    ours = LockInterceptor(backend="memory://")
    async with working(temporal_server.address, *activities, interceptors=[ours]) as world:
        (crawler,) = await world.run(Step("in_task", ["x"]))
        monkeypatch.setenv("DIBS_APPLICATION", "shop")
        handle = await world.start(Step("in_task", ["x"]), Step("theirs"), Step("without"))
        found = [crawler, *await handle.result()]
    keys = ["crawler:in-x:0", "shop:in-x:0", "billing:x:0", "x:0"]
    assert [each["key"] for each in found] == keys
    run = handle.result_run_id
    assert [each["owner"] for each in found[2:]] == [f"billing:{run}:2", f"{run}:3"]


# -- how it is installed ---------------------------------------------------------------------------


async def test_1_where_nobody_has_installed_it(temporal_server: TemporalServer) -> None:
    async with working(temporal_server.address, in_task, in_thread, interceptors=[]) as world:
        for found in await world.run(Step("in_task", ["x"]), Step("in_thread", ["x"])):
            assert found.startswith("LockNotInstalled: ")
            assert "install DibsPlugin" in found


@pytest.mark.parametrize("by", ["plugin", "interceptor at client and worker"])
async def test_one_line_installs_it_at_the_client_and_twice_is_once(
    by: str, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """In the sandbox, which imports the decorated activity with its workflow."""
    at_client: dict[str, Any] = {"plugins": [DibsPlugin()]}
    at_worker: dict[str, Any] = {}
    if by != "plugin":
        at_client = at_worker = {"interceptors": [LockInterceptor(backend=store)]}
    client = await Client.connect(temporal_server.address, **at_client)
    queue = unique("queue")
    with dibs.override(store):
        async with Worker(
            client, task_queue=queue, workflows=[Reports], activities=[report], **at_worker
        ):
            found = await client.execute_workflow(
                Reports.run, "monday", id=unique("reports"), task_queue=queue
            )
    assert found == "monday: report:monday:0"
    assert (await store.status("report:monday", "semaphore")).last_token > 0


# -- calls between activities ----------------------------------------------------------------------


@activity.defn
@needs_lock("load-{tenant}", backend="memory://")
async def load(tenant: Any, others: list[Any]) -> list[Any]:
    return [tenant, *(await load(others[0], others[1:]) if others else ())]


@needs_lock("load-{tenant}", backend="memory://")
@activity.defn
def load_in_thread(tenant: str, others: list[str]) -> list[str]:
    return [tenant, *(load_in_thread(others[0], others[1:]) if others else ())]


async def test_a_nested_call_runs_only_under_its_own_lock(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @locked(store)
    async def again() -> None:
        with pytest.raises(dibs.Reentrant):
            await store.semaphore("x", 1).acquire(wait=5)

    names = ("load", "load_in_thread")
    async with working(temporal_server.address, load, load_in_thread, again) as world:
        own = [Step(name, ["acme", ["acme"]]) for name in names]
        assert await world.run(*own, Step("again", attempts=1)) == [["acme", "acme"]] * 2 + [None]
        for failure in await world.run(*(Step(name, ["acme", ["other"]]) for name in names)):
            assert failure.startswith("LockNotHeld: ")
            assert "needs the lock 'load-other', and this activity holds 'load-acme'" in failure
        number, long = await world.run(Step("load", [1.5, []]), Step("load", ["x" * 600, []]))
    assert number.startswith("TypeError: TypeError: tenant is a float")
    assert "InvalidName" in long


async def test_what_an_activity_leaves_behind_does_not_run_after_the_release(
    temporal_server: TemporalServer,
) -> None:
    may_go_on = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    @activity.defn
    @needs_lock("behind", backend="memory://")
    async def leave_behind() -> None:
        async def later() -> None:
            await may_go_on.wait()
            await leave_behind()

        tasks.append(asyncio.create_task(later()))

    async with working(temporal_server.address, leave_behind) as world:
        await world.run(Step("leave_behind"))
        may_go_on.set()
        with pytest.raises(ApplicationError, match="was called after its activity had ended"):
            await tasks[0]


# -- how activities wait ---------------------------------------------------------------------------


async def test_they_are_served_by_priority_and_arrival_and_leave_their_slot_to_others(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    order: list[str] = []

    @locked(store, wait_in_slot=0.1)
    async def usual(name: str) -> int:
        order.append(name)
        return activity.info().attempt

    @locked(store, wait_in_slot=0.1, priority=5)
    async def urgent(name: str) -> int:
        order.append(name)
        return activity.info().attempt

    @activity.defn
    async def other() -> str:
        return "done"

    run = (usual, urgent, other)
    async with working(temporal_server.address, *run, max_concurrent_activities=1) as world:
        handles = []
        async with store.semaphore("x", 1).acquire():
            for number, name in enumerate(("usual", "usual", "urgent"), start=1):
                handles.append(await world.start(Step(name, [f"{name} {number}"])))
                await waits_for(store, "x", number)
            assert await world.run(Step("other")) == ["done"]
        attempts = [(await handle.result())[0] for handle in handles]
    assert order == ["urgent 3", "usual 1", "usual 2"]
    assert min(attempts) >= 2
    assert not await holders(store)


@pytest.mark.parametrize(("attempts", "local"), [(0, False), (2, False), (2, True)])
async def test_waits_change_nothing_of_the_users_retry_policy(
    attempts: int, local: bool, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """With a limit, and in a local activity, an attempt waits for as long as it can."""
    ran: list[int] = []

    @locked(store, wait_in_slot=0.1)
    async def work() -> None:
        ran.append(activity.info().attempt)
        if attempts:
            raise RuntimeError("it failed")

    policies: list[Any] = []
    async with working(temporal_server.address, work) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", attempts=attempts, local=local))
            await waits_for(store, "x", 1)
            if attempts:
                await asyncio.sleep(0.4)  # several times what it may wait in its slot
            else:
                await until_attempt(handle, 3)
            for found in await pending(handle):  # no local ones
                assert (found.attempt == 1) == bool(attempts)
                assert found.maximum_attempts == attempts
                policies.append(found.activity_options.retry_policy)
        await handle.result()
        history = await handle.fetch_history()
    assert ran == [1, 2] if attempts else ran[0] > 2
    scheduled = [
        each.activity_task_scheduled_event_attributes.retry_policy
        for each in history.events
        if each.HasField("activity_task_scheduled_event_attributes")
    ]
    assert policies == scheduled
    assert len(policies) == (0 if local else 1)
    for policy in policies:
        assert policy.initial_interval.ToMilliseconds() == 50
        assert (policy.maximum_attempts, policy.backoff_coefficient) == (attempts, 1.0)


async def test_a_wait_ends_by_itself_with_the_activity_or_with_its_last_attempt(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @locked(store, wait=0.3, wait_in_slot=None)
    async def in_slot() -> None: ...

    @locked(store, wait=2.0, wait_in_slot=0)
    async def without() -> None: ...

    @locked(store, wait_in_slot=0.1)
    async def for_ever() -> None: ...

    async with working(temporal_server.address, in_slot, without, for_ever) as world:
        async with store.semaphore("x", 1).acquire():
            found = await world.run(
                Step("in_slot"),
                Step("without"),
                Step("for_ever", schedule_to_close=1.0),
                Step("for_ever", start_to_close=1.0, attempts=1),
            )
            await waits_for(store, "x", 0)
    for each in found:
        assert each.startswith("AcquireTimeout: ")
        assert "is held by" in each


async def test_an_attempt_that_has_run_leaves_its_lease_to_no_other(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """The second runs under the id that the first has waited with, and may still run beside the third."""
    tokens: list[int] = []
    end = threading.Event()

    @locked(store, wait_in_slot=0.1)
    def work() -> None:
        tokens.append(current_lock().token)
        if len(tokens) == 1:
            end.wait(PATIENCE)  # the server gives up on it, and it goes on

    async with working(temporal_server.address, work) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", start_to_close=1.0))
            await until_attempt(handle, 2)
        await handle.result()
        end.set()
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 2


async def test_heartbeat_details_of_an_earlier_attempt_outlive_a_wait(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    details: list[Any] = []
    first = asyncio.Event()

    @locked(store, wait_in_slot=0.1)
    async def work() -> None:
        details.append(list(activity.info().heartbeat_details))
        if len(details) == 1:
            activity.heartbeat("half", 50)
            first.set()
            raise RuntimeError("it failed half-way")

    async with working(temporal_server.address, work) as world:
        handle = await world.start(Step("work", heartbeat=20.0))
        await first.wait()
        async with store.semaphore("x", 1).acquire():
            await until_attempt(handle, 3)
        await handle.result()
    assert details == [[], ["half", 50]]


async def test_a_waiter_that_is_cancelled_or_terminated_leaves_no_place_behind(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """They send heartbeats, by which they learn of it."""

    @locked(store, wait_in_slot=None)
    async def in_loop() -> None: ...

    @locked(store)
    def in_pool() -> None: ...

    async with (
        working(temporal_server.address, in_loop, in_pool) as world,
        store.semaphore("x", 1).acquire(),
    ):
        steps = [Step(name, heartbeat=1.0) for name in ("in_loop", "in_pool", "in_loop")]
        *cancelled, terminated = [await world.start(step) for step in steps]
        await waits_for(store, "x", 3)
        await terminated.terminate()
        for handle in cancelled:
            await handle.signal(RunsSteps.cancel, 0)
            (found,) = await handle.result()
            assert found.startswith("CancelledError")
        await waits_for(store, "x", 0)


@pytest.mark.parametrize("wait_in_slot", [None, 0.1], ids=["in slot", "without slot"])
async def test_another_worker_continues_the_wait_at_the_same_position(
    wait_in_slot: float | None, temporal_server: TemporalServer, redis_url: str
) -> None:
    """The first worker shuts down; its position is not given up, and is granted to the other's attempt."""
    ran: list[str] = []

    def make(name: str) -> Any:
        @locked(redis_url, called="work", wait_in_slot=wait_in_slot)
        async def work() -> None:
            ran.append(name)

        return work

    async with dibs.connect(redis_url) as store, store.semaphore("x", 1).acquire() as lease:

        async def waiting() -> list[str]:
            return [each.lease for each in (await store.status("x", "semaphore")).waiters]

        async with working(temporal_server.address, make("first")) as world:
            handle = await world.start(Step("work"))
            await waits_for(store, "x", 1)
            before = await waiting()
        assert await waiting() == before
        async with working(temporal_server.address, make("second"), queue=world.queue):
            await until_attempt(handle, 2)
            assert await waiting() == before
            await lease.release()
            await handle.result()
    assert ran == ["second"]


async def test_never_more_than_there_are_slots(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    """Two workers, few slots, attempts that fail, and waits that go on without a slot."""
    running: set[int] = set()
    tokens: list[list[int]] = [[], [], []]
    runs: Counter[int] = Counter()

    @locked(redis_url, capacity=3, wait_in_slot=0.2)
    async def work(number: int) -> int:
        lock = current_lock()
        assert lock.slot not in running
        running.add(lock.slot)
        tokens[lock.slot].append(lock.token)
        runs[number] += 1
        try:
            await asyncio.sleep(0.1)
            if number % 4 == 0 and runs[number] == 1:
                raise RuntimeError("it fails")
            return number
        finally:
            running.remove(lock.slot)

    few: dict[str, Any] = {"max_concurrent_activities": 4}
    async with (
        working(temporal_server.address, work, **few) as world,
        working(temporal_server.address, work, queue=world.queue, **few),
        dibs.connect(redis_url) as client,
    ):
        found = await world.run(*(Step("work", [number]) for number in range(12)))
        assert not await holders(client)
    assert found == list(range(12))
    assert runs == {number: 1 if number % 4 else 2 for number in range(12)}
    assert all(of_slot == sorted(set(of_slot)) for of_slot in tokens)


@pytest.mark.parametrize("kind", ["task", "thread"])
@pytest.mark.parametrize("reason", ["revoked", "expired"])
async def test_a_lost_lock_cancels_the_activity_and_its_result_counts_for_nothing(
    kind: str, reason: str, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """It is tried again, unless somebody revoked the lease."""
    begun = threading.Event()
    seen: list[Any] = []

    def end(error: BaseException) -> str:
        seen.append((current_lock().lost, current_lock().reason, activity.is_cancelled()))
        if reason == "revoked":
            raise error
        return "a result"

    @locked(store, called="work")
    async def in_task() -> str:
        if activity.info().attempt > 1:
            return "again"
        begun.set()
        try:
            return str(await asyncio.Event().wait())
        except asyncio.CancelledError as error:
            return end(error)

    @locked(store, called="work")
    def in_thread() -> str:
        if activity.info().attempt > 1:
            return "again"
        begun.set()
        try:
            while True:
                activity.wait_for_cancelled_sync(0.01)
        except BaseException as error:
            return end(error)

    run: Any = in_task if kind == "task" else in_thread
    async with working(temporal_server.address, run) as world:
        handle = await world.start(Step("work"))
        await until(begun.is_set)
        if reason == "revoked":
            await store.revoke("x", reason="maintenance", kind="semaphore")
        else:
            await asyncio.to_thread(expire, store.semaphore("x", 1))
        (found,) = await handle.result()
    assert re.search("^LeaseLost: .*maintenance" if reason == "revoked" else "^again$", found)
    assert seen == [(True, reason, True)]


async def test_an_error_and_a_cancellation_pass_and_free_the_slot(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @locked(store)
    def failing() -> None:
        raise ValueError("bad input")

    @locked(store)
    async def endless() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.05)

    async with working(temporal_server.address, failing, endless) as world:
        (found,) = await world.run(Step("failing", attempts=1))
        assert found.startswith("ValueError: ")
        assert not await holders(store)
        handle = await world.start(Step("endless", heartbeat=0.5))
        await poll(lambda: holders(store))
        await handle.signal(RunsSteps.cancel, 0)
        (found,) = await handle.result()
        assert found.startswith("CancelledError")
        assert not await holders(store)


# -- the lease's length ----------------------------------------------------------------------------


async def test_without_renewals_a_lease_outlasts_all_of_an_attempt(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @locked(store)
    async def renewed() -> float:
        return current_lock().remaining

    @activity.defn
    @needs_lock("y", backend=store, auto_renew=False)
    async def whole_time() -> float:
        return current_lock().remaining

    async with working(temporal_server.address, renewed, whole_time) as world:
        hour = [Step(name, schedule_to_close=3600.0) for name in ("renewed", "whole_time")]
        found = await world.run(*hour, Step("whole_time", start_to_close=5.0))
    assert found[0] < 30
    assert 3600 < found[1] < 3700
    assert 5 < found[2] < 8


async def test_it_is_renewed_while_the_activity_runs(
    temporal_server: TemporalServer, redis_url: str
) -> None:
    @locked(redis_url, ttl="600ms")
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

    @locked(store, ttl="500ms")
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


async def test_an_outage_of_the_store_fails_no_workflow(
    temporal_server: TemporalServer, redis_server: RedisServer, redis_url: str
) -> None:
    """Each attempt ends with an error that names it, and the next one tries again."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        url = proxy.url_for(redis_url)
        client = dibs.connect(url, connect_timeout="200ms", call_timeout="200ms")

        @locked(client)
        async def work() -> int:
            return activity.info().attempt

        async with client, working(temporal_server.address, work) as world:
            proxy.hang()
            handle = await world.start(Step("work", schedule_to_close=None, start_to_close=60.0))
            await until_attempt(handle, 2)
            (waiting,) = await pending(handle)
            failure = waiting.last_failure.application_failure_info
            assert failure.type == "BackendUnavailable"
            proxy.heal()
            (attempt,) = await handle.result()
            assert not await holders(client)
    assert attempt > 1
