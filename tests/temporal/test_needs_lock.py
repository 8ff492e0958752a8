"""`@needs_lock` on a real Temporal server: what an activity knows of its lock, and how it waits."""

import asyncio
import multiprocessing
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, SharedStateManager, UnsandboxedWorkflowRunner, Worker

import dibs
from dibs.temporal import DibsPlugin, LockInterceptor, TemporalWorker, current_lock, needs_lock
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
from tests.temporal.sandbox_flows import Reports, report
from tests.temporal.workers import PATIENCE, connected, poll, unique

pytestmark = pytest.mark.once


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


@activity.defn
@needs_lock("long", backend=None)
def until_cancelled() -> str:
    lock = current_lock()
    activity.heartbeat()
    activity.wait_for_cancelled_sync(30)
    assert lock.lost
    with pytest.raises(dibs.LeaseLost):
        lock.ensure()
    return "too late"


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


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "temporal"])
async def test_in_tasks_threads_and_methods_over_any_store(
    kind: str, temporal_server: TemporalServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    queue = unique("brokers")
    urls = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path / 'leases.db'}",
        "redis": redis_server.url,
        "temporal": f"{temporal_server.url}?task_queue={queue}",
    }
    ours = LockInterceptor(application="shop", backend=urls[kind])
    activities = (in_task, in_thread, Objects().in_method, CallableObject())
    name = unique()
    async with (
        TemporalWorker(await connected(temporal_server), task_queue=queue),
        working(temporal_server.address, *activities, interceptors=[ours]) as world,
    ):
        handle = await world.start(
            *(Step(f"in_{each}", [name]) for each in ("task", "thread", "method", "object"))
        )
        found = await handle.result()
    assert len({each["token"] for each in found}) == 4
    for number, each in enumerate(found, start=1):
        assert each["key"] in (f"shop:in-{name}:0", f"shop:in-{name}:1")
        assert each["owner"] == f"shop:{handle.result_run_id}:{number}"
        assert not each["lost"]


async def test_in_a_pool_of_processes(temporal_server: TemporalServer, store: dibs.Client) -> None:
    spawning = multiprocessing.get_context("spawn")
    with spawning.Manager() as manager, ProcessPoolExecutor(1, mp_context=spawning) as pool:
        async with working(
            temporal_server.address,
            in_process,
            until_cancelled,
            interceptors=[LockInterceptor(backend=store)],
            executor=pool,
            shared_state_manager=SharedStateManager.create_from_multiprocessing(
                manager, ThreadPoolExecutor(1)
            ),
        ) as world:
            (found,) = await world.run(Step("in_process", ["pool"]))
            handle = await world.start(Step("until_cancelled"))
            await poll(lambda: store.revoke("long", reason="enough", kind="semaphore"))
            (lost,) = await handle.result()
    assert lost.startswith("LeaseLost: ")
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
    assert [each["key"] for each in found] == [
        "crawler:in-x:0",
        "shop:in-x:0",
        "billing:x:0",
        "x:0",
    ]
    run = handle.result_run_id
    assert [each["owner"] for each in found[2:]] == [f"billing:{run}:2", f"{run}:3"]


async def test_an_argument_that_makes_no_name_fails_the_activity_for_good(
    temporal_server: TemporalServer,
) -> None:
    @activity.defn
    @needs_lock("of-{what}", backend="memory://")
    async def untyped(what: Any) -> None:
        raise AssertionError("it ran")

    async with working(temporal_server.address, untyped) as world:
        number, long = await world.run(Step("untyped", [1.5]), Step("untyped", ["x" * 600]))
    assert number.startswith("TypeError: TypeError: what is a float")
    assert "InvalidName" in long


async def test_an_activity_that_acquires_what_it_holds_is_told_so(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store)
    async def work() -> None:
        with pytest.raises(dibs.Reentrant):
            await store.semaphore("x", 1).acquire(wait=5)

    async with working(temporal_server.address, work) as world:
        assert await world.run(Step("work", attempts=1)) == [None]


# -- how it is installed ---------------------------------------------------------------------------


@pytest.mark.parametrize("of_a_thread", [False, True])
async def test_1_where_nobody_has_installed_it(
    temporal_server: TemporalServer, of_a_thread: bool
) -> None:
    run: Any = in_thread if of_a_thread else in_task
    async with working(temporal_server.address, run, interceptors=[]) as world:
        (found,) = await world.run(Step(run.__name__, ["x"]))
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


async def test_an_activity_on_another_queue_is_locked_by_the_worker_that_runs_it(
    temporal_server: TemporalServer,
) -> None:
    """The workflow's worker knows neither the activity nor its lock."""
    address = temporal_server.address
    async with working(address, load) as there:
        async with working(address, interceptors=[]) as here:
            assert await here.run(Step("load", ["acme", []], queue=there.queue)) == [["acme"]]


async def test_histories_do_not_depend_on_whether_it_is_installed(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn(name="in_task")
    async def plain(where: str) -> None: ...

    ours = [LockInterceptor(backend=store)]
    for run, interceptors in ((in_task, ours), (plain, [])):
        async with working(temporal_server.address, run, interceptors=interceptors) as world:
            handle = await world.start(Step("in_task", ["x"]))
            await handle.result()
            history = await handle.fetch_history()
        assert len(history.events) == 11
        for other in (ours, []):
            replayer = Replayer(
                workflows=[RunsSteps],
                interceptors=other,
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
            await replayer.replay_workflow(history)


# -- calls between activities ----------------------------------------------------------------------


@activity.defn
@needs_lock("load-{tenant}", backend="memory://")
async def load(tenant: str, others: list[str]) -> list[str]:
    return [tenant, *(await load(others[0], others[1:]) if others else ())]


@needs_lock("load-{tenant}", backend="memory://")
@activity.defn
def load_in_thread(tenant: str, others: list[str]) -> list[str]:
    return [tenant, *(load_in_thread(others[0], others[1:]) if others else ())]


@pytest.mark.parametrize("name", ["load", "load_in_thread"])
async def test_a_nested_call_runs_only_under_its_own_lock(
    name: str, temporal_server: TemporalServer
) -> None:
    async with working(temporal_server.address, load, load_in_thread) as world:
        assert await world.run(Step(name, ["acme", ["acme"]])) == [["acme", "acme"]]
        (failure,) = await world.run(Step(name, ["acme", ["other"]]))
    assert failure.startswith("LockNotHeld: ")
    assert "needs the lock 'load-other', and this activity holds 'load-acme'" in failure


@dataclass
class LeftBehind:
    """A task that an activity starts and does not await."""

    may_go_on: asyncio.Event
    task: asyncio.Task[str]


left_behind: dict[str, LeftBehind] = {}


@activity.defn
@needs_lock("behind-{name}", backend="memory://")
async def leave_behind(name: str, nested: bool = False) -> str:
    may_go_on = asyncio.Event()

    async def later() -> str:
        await may_go_on.wait()
        return await leave_behind(name, nested=True)

    if not nested:
        left_behind[name] = LeftBehind(may_go_on, asyncio.create_task(later()))
    return name


async def test_what_an_activity_leaves_behind_does_not_run_after_the_release(
    temporal_server: TemporalServer,
) -> None:
    name = unique()
    async with working(temporal_server.address, leave_behind) as world:
        assert await world.run(Step("leave_behind", [name])) == [name]
        left_behind[name].may_go_on.set()
        with pytest.raises(ApplicationError, match="was called after its activity had ended"):
            await left_behind[name].task


# -- how activities wait ---------------------------------------------------------------------------


@pytest.mark.parametrize("wait_in_slot", [None, 0.2], ids=["in slot", "without slot"])
async def test_they_are_served_by_priority_and_arrival(
    wait_in_slot: float | None, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    order: list[str] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=wait_in_slot)
    async def usual(name: str) -> int:
        order.append(name)
        return current_lock().token

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=wait_in_slot, priority=5)
    async def urgent(name: str) -> int:
        order.append(name)
        return current_lock().token

    async with working(temporal_server.address, usual, urgent) as world:
        handles = []
        async with store.semaphore("x", 1).acquire():
            steps = (Step("usual", ["1"]), Step("usual", ["2"]), Step("urgent", ["urgent"]))
            for number, step in enumerate(steps, start=1):
                handles.append(await world.start(step))
                await waits_for(store, "x", number)
            if wait_in_slot is not None:
                for handle in handles:
                    await until_attempt(handle, 2)
        first, second, before = [(await handle.result())[0] for handle in handles]
    assert order == ["urgent", "1", "2"]
    assert before < first < second


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

    async with working(temporal_server.address, work) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", attempts=attempts))
            await waits_for(store, "x", 1)
            before = await policy(handle)
            if not attempts:  # with a limit an attempt waits for as long as it can
                await until_attempt(handle, 3)
            assert await policy(handle) == before
        (took,) = await handle.result()
        assert took == 1 if attempts else took > 2
        history = await handle.fetch_history()
    (scheduled,) = [
        each.activity_task_scheduled_event_attributes.retry_policy
        for each in history.events
        if each.HasField("activity_task_scheduled_event_attributes")
    ]
    assert scheduled == before
    assert before.initial_interval.ToMilliseconds() == 50
    assert (before.maximum_attempts, before.backoff_coefficient) == (attempts, 1.0)


async def test_a_long_wait_leaves_its_slot_to_other_activities(
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

    async with working(temporal_server.address, work, other, max_concurrent_activities=1) as world:
        async with store.semaphore("x", 1).acquire():
            waiting = [await world.start(Step("work")) for _ in range(2)]
            await waits_for(store, "x", 2)
            assert await world.run(Step("other")) == ["done"]
            assert not ran
        attempts = [(await handle.result())[0] for handle in waiting]
    assert min(attempts) >= 2
    assert not await holders(store)


async def test_a_wait_ends_by_itself_with_the_activity_or_with_its_last_attempt(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait=0.3, wait_in_slot=None)
    async def in_slot() -> None: ...

    @activity.defn
    @needs_lock("x", backend=store, wait=2.0, wait_in_slot=0)
    async def without() -> None: ...

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
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


@pytest.mark.parametrize("local", [False, True])
async def test_a_wait_costs_none_of_a_limited_number_of_attempts(
    local: bool, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """A local activity waits within its attempt in any case."""
    ran: list[int] = []

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
    async def work() -> None:
        ran.append(activity.info().attempt)
        raise RuntimeError("it failed")

    async with working(temporal_server.address, work) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", attempts=2, local=local))
            await waits_for(store, "x", 1)
            await asyncio.sleep(0.5)  # several times what it may wait in its slot
            if not local:
                (found,) = await pending(handle)
                assert found.attempt == 1
                assert found.activity_options.retry_policy.maximum_attempts in {0, 2}
        (failure,) = await handle.result()
    assert failure.startswith("RuntimeError")
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

    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=0.1)
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


async def test_waiting_activities_send_heartbeats(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=None)
    async def work() -> int:
        return activity.info().attempt

    timeout = 1.5
    often = timedelta(seconds=0.2)
    async with working(
        temporal_server.address, work, max_heartbeat_throttle_interval=often
    ) as world:
        async with store.semaphore("x", 1).acquire():
            handle = await world.start(Step("work", heartbeat=timeout))
            await poll(
                lambda: pending(handle),
                lambda found: any(
                    each.last_heartbeat_time.ToMicroseconds()
                    > each.last_started_time.ToMicroseconds() + timeout * 1e6
                    for each in found
                ),
            )
        assert await handle.result() == [1]


async def test_a_waiter_that_is_cancelled_or_terminated_leaves_no_place_behind(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store, wait_in_slot=None)
    async def in_loop() -> None:
        raise AssertionError("it ran")

    @activity.defn
    @needs_lock("x", backend=store)
    def in_pool() -> None:
        raise AssertionError("it ran")

    async with (
        working(temporal_server.address, in_loop, in_pool) as world,
        store.semaphore("x", 1).acquire(),
    ):
        steps = [Step(name, heartbeat=1.0) for name in ("in_loop", "in_pool", "in_loop")]
        *cancelled, terminated = [await world.start(step) for step in steps]
        await waits_for(store, "x", 3)
        for handle in cancelled:
            await handle.signal(RunsSteps.cancel, 0)
        await terminated.terminate()
        for handle in cancelled:
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
        @activity.defn(name="work")
        @needs_lock("x", backend=redis_url, wait_in_slot=wait_in_slot)
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

    few: dict[str, Any] = {"max_concurrent_activities": 4}
    async with (
        working(temporal_server.address, work, **few) as world,
        working(temporal_server.address, work, queue=world.queue, **few),
        dibs.connect(redis_url) as client,
    ):
        found = await world.run(*(Step("work", [number]) for number in range(16)))
        assert not await holders(client)
    assert found == list(range(16))
    assert runs == {number: 1 if number % 4 else 2 for number in range(16)}
    for slot in range(3):
        mine = [token for each, token in tokens if each == slot]
        assert mine == sorted(set(mine))
