"""`@needs_lock` on a real Temporal server: what an activity has of its lock, in every kind of worker."""

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Replayer,
    SharedStateManager,
    UnsandboxedWorkflowRunner,
    Worker,
)

import dibs
from dibs.temporal import DibsPlugin, LockInterceptor, TemporalWorker, current_lock, needs_lock
from tests.servers.redis import RedisServer
from tests.servers.temporal import TemporalServer
from tests.temporal.needs_lock_flow import Reports, report
from tests.temporal.needs_lock_world import WAIT, RunsSteps, Step, pending, waits_for, working
from tests.temporal.workers import until

pytestmark = pytest.mark.once


def lock_told() -> dict[str, Any]:
    lock = current_lock()
    lock.ensure("1s")
    return {"key": lock.key, "owner": lock.owner, "token": lock.token, "lost": lock.lost}


@activity.defn
@needs_lock("in-{where}", capacity=2)
async def in_task(where: str) -> dict[str, Any]:
    return lock_told()


@needs_lock("in-{where}", capacity=2)
@activity.defn
def in_thread(where: str) -> dict[str, Any]:
    return lock_told()


@activity.defn
@needs_lock("in-{where}", capacity=2)
def in_process(where: str) -> dict[str, Any]:
    lock = current_lock()
    lock.ensure()
    with pytest.raises(RuntimeError, match="process pool"):
        assert lock.remaining
    return {"key": lock.key, "owner": lock.owner, "token": lock.token, "lost": lock.lost}


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
        return lock_told()


@activity.defn(name="in_object")
class CallableObject:
    @needs_lock("in-{where}", capacity=2)
    async def __call__(self, where: str) -> dict[str, Any]:
        return lock_told()


def url_of(kind: str, tmp_path: Path, redis: RedisServer) -> str:
    return {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path / 'leases.db'}",
        "redis": redis.url,
    }[kind]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_in_tasks_threads_and_methods_over_any_store(
    kind: str, temporal_server: TemporalServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    ours = LockInterceptor(application="shop", backend=url_of(kind, tmp_path, redis_server))
    name = f"{uuid4()}"
    async with working(
        temporal_server.address,
        [in_task, in_thread, Objects().in_method, CallableObject()],
        interceptors=[ours],
    ) as world:
        handle = await world.start(
            *(Step(f"in_{each}", [name]) for each in ("task", "thread", "method", "object"))
        )
        found = await handle.result()
    tokens = {each["token"] for each in found}
    assert len(tokens) == 4
    for number, each in enumerate(found, start=1):
        assert each["key"] in (f"shop:in-{name}:0", f"shop:in-{name}:1")
        assert each["owner"] == f"shop:{handle.result_run_id}:{number}"
        assert not each["lost"]


async def test_a_worker_of_locked_activities_alone_logs_nothing(
    temporal_server: TemporalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody serves the queue of permits, and nobody here needs one."""
    plugin = DibsPlugin(backend=f"sqlite:///{tmp_path / 'leases.db'}")
    async with working(
        temporal_server.address, [in_task], interceptors=[], plugins=[plugin]
    ) as world:
        (found,) = await world.run(Step("in_task", [f"{uuid4()}"]))
    assert found["token"] > 0
    assert [each.getMessage() for each in caplog.records if each.name.startswith("dibs")] == []


async def test_in_a_pool_of_processes(temporal_server: TemporalServer, store: dibs.Client) -> None:
    spawning = multiprocessing.get_context("spawn")
    with spawning.Manager() as manager, ProcessPoolExecutor(1, mp_context=spawning) as pool:
        shared = SharedStateManager.create_from_multiprocessing(manager, ThreadPoolExecutor(1))
        async with working(
            temporal_server.address,
            [in_process, until_cancelled],
            interceptors=[LockInterceptor(backend=store)],
            executor=pool,
            shared_state_manager=shared,
        ) as world:
            (found,) = await world.run(Step("in_process", ["pool"]))
            handle = await world.start(Step("until_cancelled"))
            async with asyncio.timeout(WAIT):
                while not await store.revoke("long", reason="enough", kind="semaphore"):
                    await asyncio.sleep(0.1)
            (lost,) = await handle.result()
    assert lost.startswith("LeaseLost: ")
    assert found["key"] == "in-pool:0"
    assert found["token"] > 0


async def test_who_holds_it_is_seen_in_redis(
    temporal_server: TemporalServer, redis_server: RedisServer, redis_url: str
) -> None:
    go, held = asyncio.Event(), asyncio.Event()

    @activity.defn
    @needs_lock(max_locks=5, lock_name="database_access")
    async def query() -> str:
        held.set()
        await go.wait()
        return current_lock().key

    ours = LockInterceptor(application="shop", backend=redis_url)
    async with working(temporal_server.address, [query], interceptors=[ours]) as world:
        handle = await world.start(Step("query"))
        await held.wait()
        with redis_server.client() as redis:
            keys = [each.decode() for each in redis.keys("*shop:database_access*")]
            assert len(keys) == 1
            assert redis.type(keys[0]) == b"string"  # the form of one lone holder
            assert f"shop:{handle.result_run_id}:1" in str(redis.get(keys[0]))
        async with dibs.connect(redis_url) as client:
            (seen,) = [each async for each in client.list("shop:")]
        go.set()
        assert await handle.result() == ["shop:database_access:0"]
    (holder,) = seen.holders
    assert (seen.name, seen.capacity) == (b"shop:database_access", 5)
    assert (holder.owner, holder.slots) == (f"shop:{handle.result_run_id}:1", (0,))
    assert holder.note == f"query of {handle.id}"


async def test_the_application_is_named_by_the_environment(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPLICATION_NAME", "crawler")
    ours = LockInterceptor(backend="memory://")
    async with working(temporal_server.address, [in_task], interceptors=[ours]) as world:
        (found,) = await world.run(Step("in_task", ["x"]))
        monkeypatch.setenv("DIBS_APPLICATION", "shop")
        (other,) = await world.run(Step("in_task", ["x"]))
    assert found["key"] == "crawler:in-x:0"
    assert other["key"] == "shop:in-x:0"


async def test_an_activity_may_name_an_application_of_its_own(
    temporal_server: TemporalServer,
) -> None:
    @activity.defn
    @needs_lock("x", application="billing")
    async def theirs() -> dict[str, Any]:
        return lock_told()

    @activity.defn
    @needs_lock("x", application="")
    async def everybody_s() -> dict[str, Any]:
        return lock_told()

    ours = LockInterceptor(application="shop", backend="memory://")
    async with working(
        temporal_server.address, [theirs, everybody_s], interceptors=[ours]
    ) as world:
        handle = await world.start(Step("theirs"), Step("everybody_s"))
        found = await handle.result()
    assert [each["key"] for each in found] == ["billing:x:0", "x:0"]
    run = handle.result_run_id
    assert [each["owner"] for each in found] == [f"billing:{run}:1", f"{run}:2"]


async def test_an_argument_that_makes_no_name_fails_it_for_good(
    temporal_server: TemporalServer,
) -> None:
    @activity.defn
    @needs_lock("of-{what}")
    async def untyped(what: Any) -> None:
        raise AssertionError("it ran")

    ours = LockInterceptor(backend="memory://")
    async with working(temporal_server.address, [untyped], interceptors=[ours]) as world:
        (found,) = await world.run(Step("untyped", [1.5]))
        (other,) = await world.run(Step("untyped", ["x" * 600]))
    assert found.startswith("TypeError: TypeError: what is a float")
    assert "InvalidName" in other


async def test_1_once_installed_at_the_client_it_is_on_in_its_workers(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    ours = LockInterceptor(backend=store)
    client = await Client.connect(temporal_server.address, interceptors=[ours])
    queue = f"q-{uuid4()}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[RunsSteps],
        activities=[in_task],
        interceptors=[LockInterceptor(backend=store)],  # given twice it counts once
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        (found,) = await client.execute_workflow(
            RunsSteps.run, [Step("in_task", ["x"])], id=f"w-{uuid4()}", task_queue=queue
        )
    assert found["key"] == "in-x:0"


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_9_who_waits_can_be_cancelled(
    kind: str, temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn(name="work")
    @needs_lock("x", backend=store)
    async def in_loop() -> None:
        raise AssertionError("it ran")

    @activity.defn(name="work")
    @needs_lock("x", backend=store)
    def in_pool() -> None:
        raise AssertionError("it ran")

    lock = store.semaphore("x", 1)
    async with working(temporal_server.address, [in_loop if kind == "async" else in_pool]) as world:
        async with lock.acquire():
            handle = await world.start(Step("work", heartbeat=1.0))
            await waits_for(store, "x", 1)
            await handle.signal(RunsSteps.cancel, 0)
            (found,) = await handle.result()
            assert found.startswith("CancelledError")
            await waits_for(store, "x", 0)


async def test_a_local_activity_waits_within_its_attempt(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("in-x", backend=store, wait_in_slot=0.1)
    async def local() -> list[int]:
        return [activity.info().attempt, current_lock().slot]

    async with working(temporal_server.address, [local]) as world:
        async with store.semaphore("in-x", 1).acquire():
            handle = await world.start(Step("local", local=True))
            await waits_for(store, "in-x", 1)
            await asyncio.sleep(0.5)
        assert await handle.result() == [[1, 0]]


async def test_a_sandboxed_workflow_takes_its_activities_in(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    """The decorator does no I/O, so no module of a workflow has to pass it through."""
    client = await Client.connect(temporal_server.address)
    queue = f"q-{uuid4()}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Reports],
        activities=[report],
        interceptors=[LockInterceptor(backend=store)],
    ):
        told = await client.execute_workflow(
            Reports.run, "monday", id=f"w-{uuid4()}", task_queue=queue
        )
    assert told == "monday: report:monday:0"


async def test_who_has_it_is_told_who_asks_for_it_again(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    @activity.defn
    @needs_lock("x", backend=store)
    async def work() -> str:
        try:
            await store.semaphore("x", 1).acquire()
        except dibs.Reentrant as error:
            return str(error)
        return "waited for itself"

    async with working(temporal_server.address, [work]) as world:
        (found,) = await world.run(Step("work"))
    assert "already held by this task" in found


async def test_the_plugin_is_one_line_and_the_default_store_is_the_default(
    temporal_server: TemporalServer, store: dibs.Client
) -> None:
    client = await Client.connect(temporal_server.address, plugins=[DibsPlugin()])
    queue = f"q-{uuid4()}"
    with dibs.override(store):
        async with Worker(client, task_queue=queue, workflows=[Reports], activities=[report]):
            told = await client.execute_workflow(
                Reports.run, "monday", id=f"w-{uuid4()}", task_queue=queue
            )
    assert told == "monday: report:monday:0"
    assert (await store.status("report:monday", "semaphore")).last_token > 0


async def test_over_temporal_itself(temporal_server: TemporalServer) -> None:
    """One server for all: the lock is a broker's, and plain programs compete for it fairly."""
    client = await Client.connect(temporal_server.address)
    name, queue = f"n-{uuid4()}", f"q-{uuid4()}"
    url = f"{temporal_server.url}?task_queue={queue}"

    @activity.defn
    @needs_lock(name, backend=url, wait_in_slot=None)
    async def work() -> int:
        return current_lock().token

    async with (
        TemporalWorker(client, task_queue=queue),
        dibs.connect(url) as store,
        working(temporal_server.address, [work]) as world,
    ):
        async with store.semaphore(name, 1).acquire() as lease:
            handle = await world.start(Step("work"))
            await waits_for(store, name, 1)
        (token,) = await handle.result()
    assert token > lease.token


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


@activity.defn
@needs_lock("load-{tenant}")
async def load(tenant: str, others: list[str]) -> list[str]:
    return [tenant, *(await load(others[0], others[1:]) if others else ())]


@needs_lock("load-{tenant}")
@activity.defn
def load_in_thread(tenant: str, others: list[str]) -> list[str]:
    return [tenant, *(load_in_thread(others[0], others[1:]) if others else ())]


@pytest.mark.parametrize("name", ["load", "load_in_thread"])
async def test_a_nested_call_runs_only_under_its_own_lock(
    name: str, temporal_server: TemporalServer
) -> None:
    async with working(
        temporal_server.address, [load, load_in_thread], interceptors=[locks()]
    ) as world:
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
@needs_lock("behind-{name}")
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
    name = f"{uuid4()}"
    async with working(temporal_server.address, [leave_behind], interceptors=[locks()]) as world:
        assert await world.run(Step("leave_behind", [name])) == [name]
        left_behind[name].may_go_on.set()
        with pytest.raises(ApplicationError, match="was called after its activity had ended"):
            await left_behind[name].task


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
