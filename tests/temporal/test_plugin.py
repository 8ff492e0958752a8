"""The plugin: what it sets up, and that twice is once."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from dibs.errors import DibsError
from dibs.temporal import (
    DibsBroker,
    DibsPlugin,
    LockInterceptor,
    PermitSlotWorkflow,
    TemporalWorker,
)
from dibs.temporal.plugin import _shared, served_beside
from dibs.temporal.worker.served import WORKFLOWS
from tests.servers.temporal import TemporalServer
from tests.temporal.guarded_flows import Raises
from tests.temporal.plugin_flows import Holds, OwnPermit
from tests.temporal.workers import PATIENCE, connected, unique, until

pytestmark = pytest.mark.once


async def with_plugin(server: TemporalServer, plugin: DibsPlugin | None = None) -> Client:
    return await Client.connect(server.address, plugins=[plugin or DibsPlugin()])


def types_of(worker: Worker) -> list[type]:
    return list(worker.config(active_config=True)["workflows"])


def ours_in(worker: Worker) -> list[Any]:
    """All interceptors of ours that it has, its client's included."""
    config = worker.config(active_config=True)
    inherited = config["client"].config(active_config=True)["interceptors"]
    both: list[Any] = [*config["interceptors"], *inherited]
    return [each for each in both if isinstance(each, LockInterceptor)]


async def held(client: Client, queue: str, permits: str) -> Any:
    """The slot that a workflow of that queue held, and which module its semaphore came from."""
    return await client.execute_workflow(
        Holds.run,
        args=[unique("r"), permits],
        id=unique("holds"),
        task_queue=queue,
        execution_timeout=timedelta(seconds=PATIENCE),
    )


# -- what it sets up ------------------------------------------------------------------------------


async def test_an_applications_worker(temporal_server: TemporalServer) -> None:
    """It needs our interceptor, errors and sandbox, and serves its permits, but no brokers."""
    client = await with_plugin(temporal_server)
    worker = Worker(client, task_queue=unique("queue"), workflows=[Holds])
    config = worker.config(active_config=True)
    assert types_of(worker) == [Holds, PermitSlotWorkflow]
    assert len(ours_in(worker)) == 1
    assert DibsError in config["workflow_failure_exception_types"]
    runner = config["workflow_runner"]
    assert isinstance(runner, SandboxedWorkflowRunner)
    assert "dibs" in runner.restrictions.passthrough_modules


@pytest.mark.parametrize(
    ("theirs", "all_of_them"),
    [
        ([], [*WORKFLOWS]),
        ([Holds], [Holds, *WORKFLOWS]),
        ([PermitSlotWorkflow], [*WORKFLOWS]),
        ([OwnPermit], [OwnPermit, DibsBroker]),
    ],
)
async def test_a_worker_of_the_permit_queue(
    temporal_server: TemporalServer,
    monkeypatch: pytest.MonkeyPatch,
    theirs: list[type],
    all_of_them: list[type],
) -> None:
    """It serves permits, too; a workflow of the user's own by one of our names stays."""
    queue = unique("queue")
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", queue)
    client = await with_plugin(temporal_server)
    assert types_of(Worker(client, task_queue=queue, workflows=theirs)) == all_of_them


async def test_twice_is_once(temporal_server: TemporalServer) -> None:
    """At the client, and at the worker; Temporal itself warns of it."""
    queue = unique("queue")
    client = await with_plugin(temporal_server, DibsPlugin(task_queue=queue))
    with pytest.warns(UserWarning, match="The same plugin type"):
        worker = Worker(client, task_queue=queue, plugins=[DibsPlugin(task_queue=queue)])
    assert types_of(worker) == [*WORKFLOWS]
    assert len(ours_in(worker)) == 1
    types = worker.config(active_config=True)["workflow_failure_exception_types"]
    assert list(types).count(DibsError) == 1
    async with worker:

        async def runs() -> bool:
            return worker.is_running

        await until(runs)


async def test_an_interceptor_of_the_clients_own_stays(temporal_server: TemporalServer) -> None:
    own = LockInterceptor(application="shop")
    client = await Client.connect(
        temporal_server.address, plugins=[DibsPlugin()], interceptors=[own]
    )
    worker = Worker(client, task_queue=unique("queue"), workflows=[Holds])
    assert ours_in(worker) == [own]


async def test_it_takes_what_activities_are_locked_with(temporal_server: TemporalServer) -> None:
    client = await with_plugin(
        temporal_server, DibsPlugin(application="shop", backend="memory://shop")
    )
    worker = Worker(client, task_queue=unique("queue"), workflows=[Holds])
    [interceptor] = ours_in(worker)
    assert interceptor.application == "shop"


def test_a_replayer_knows_our_workflows() -> None:
    config = Replayer(workflows=[Holds], plugins=[DibsPlugin()]).config(active_config=True)
    assert list(config["workflows"]) == [Holds, *WORKFLOWS]


async def test_a_worker_without_workflows_gets_none(temporal_server: TemporalServer) -> None:
    """Else it would take workflow tasks that it can't do from another worker of its queue."""
    client = await with_plugin(temporal_server)

    @activity.defn
    async def work() -> None: ...

    worker = Worker(client, task_queue=unique("queue"), activities=[work])
    assert not types_of(worker)


# -- what that does -------------------------------------------------------------------------------


async def test_one_line_serves_everything(temporal_server: TemporalServer) -> None:
    """`serve=True`: permits are served beside the application's worker, in its process."""
    permits, queue = unique("permits"), unique("queue")
    client = await with_plugin(temporal_server, DibsPlugin(task_queue=permits, serve=True))
    async with Worker(client, task_queue=queue, workflows=[Holds]):
        slot, same = await held(client, queue, permits)
    assert slot == "0"
    assert same == id(sys.modules["dibs.temporal.semaphore"]), "it was taken in anew"


async def test_several_share_one_beside(temporal_server: TemporalServer) -> None:
    """Temporal has one worker a queue and client; it ends with the last that needs it."""
    permits = unique("permits")
    client = await with_plugin(temporal_server, DibsPlugin(task_queue=permits, serve=True))
    async with Worker(client, task_queue=unique("queue"), workflows=[Holds]):
        queue = unique("queue")
        async with Worker(client, task_queue=queue, workflows=[Holds]):
            pass
        last = unique("queue")
        async with Worker(client, task_queue=last, workflows=[Holds]):
            slot, _ = await held(client, last, permits)
    assert slot == "0"
    assert not _shared[client]


async def test_who_comes_second_waits_as_well_until_it_is_ready(
    temporal_server: TemporalServer,
) -> None:
    client = await connected(temporal_server)
    queue = unique("permits")
    one, two = served_beside(client, queue), served_beside(client, queue)
    first = asyncio.create_task(one.__aenter__())
    await asyncio.sleep(0)  # it has begun
    await two.__aenter__()
    await first
    worker = _shared[client][queue].worker
    assert worker is not None
    assert worker.is_ready
    await one.__aexit__(None, None, None)
    assert worker.is_ready
    await two.__aexit__(None, None, None)
    assert worker.not_ready == "it has stopped"
    assert not _shared[client]


@pytest.mark.parametrize("staying", [True, False])
async def test_who_is_cancelled_while_it_starts_stops_it_for_nobody_else(
    temporal_server: TemporalServer, *, staying: bool
) -> None:
    client = await connected(temporal_server)
    queue = unique("permits")
    one, two = served_beside(client, queue), served_beside(client, queue)
    first = asyncio.create_task(one.__aenter__())
    second = asyncio.create_task(two.__aenter__())
    await asyncio.sleep(0)
    first.cancel()
    if not staying:
        second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    if staying:
        await second
        worker = _shared[client][queue].worker
        assert worker is not None
        assert worker.is_ready
        await two.__aexit__(None, None, None)
    else:
        with pytest.raises(asyncio.CancelledError):
            await second
    assert not _shared[client]
    async with served_beside(client, queue):  # there may be another
        assert _shared[client][queue].worker is not None


async def test_one_that_serves_already_is_enough(temporal_server: TemporalServer) -> None:
    permits = unique("permits")
    client = await with_plugin(temporal_server, DibsPlugin(task_queue=permits, serve=True))
    async with TemporalWorker(client, task_queue=permits):
        queue = unique("queue")
        async with Worker(client, task_queue=queue, workflows=[Holds]):
            slot, _ = await held(client, queue, permits)
    assert slot == "0"


async def test_an_error_of_ours_fails_the_workflow(temporal_server: TemporalServer) -> None:
    queue = unique("queue")
    client = await connected(temporal_server)
    async with Worker(
        client, task_queue=queue, workflows=[Raises], plugins=[DibsPlugin(task_queue=queue)]
    ):
        with pytest.raises(WorkflowFailureError) as failed:
            await client.execute_workflow(
                Raises.run,
                id=unique("raises"),
                task_queue=queue,
                execution_timeout=timedelta(seconds=PATIENCE),
            )
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "InvalidName"


# -- nobody serves --------------------------------------------------------------------------------


async def test_no_start_says_that_nobody_serves_what_nobody_may_want(
    temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As where activities keep their locks in Redis; who wants a broker is told by an error."""
    plugin = DibsPlugin(task_queue=unique("permits"), backend="memory://")
    client, queue = await with_plugin(temporal_server, plugin), unique("queue")
    async with Worker(client, task_queue=queue, workflows=[Raises]):
        with pytest.raises(WorkflowFailureError):
            await client.execute_workflow(Raises.run, id=unique("raises"), task_queue=queue)
    assert not [each for each in caplog.records if each.name.startswith("dibs")]


# -- the worker, in this process ------------------------------------------------------------------


async def test_its_drain_has_one_name(temporal_server: TemporalServer) -> None:
    client = await connected(temporal_server)
    with pytest.raises(TypeError, match="say drain="):
        TemporalWorker(client, graceful_shutdown_timeout=timedelta(minutes=5))


@pytest.mark.parametrize(
    ("options", "sandboxed"),
    [
        ({}, False),
        ({"workflows": [Holds]}, True),
        ({"workflows": [Holds], "workflow_runner": UnsandboxedWorkflowRunner()}, False),
    ],
)
async def test_workflows_of_the_users_own_are_sandboxed(
    temporal_server: TemporalServer, options: dict[str, Any], *, sandboxed: bool
) -> None:
    """Ours needn't be, and theirs have Temporal's own default unless they say otherwise."""
    client = await connected(temporal_server)
    worker = TemporalWorker(client, task_queue=unique("queue"), **options)
    runner = worker._worker.config(active_config=True)["workflow_runner"]
    assert isinstance(runner, SandboxedWorkflowRunner) is sandboxed
    if isinstance(runner, SandboxedWorkflowRunner):
        assert "dibs" in runner.restrictions.passthrough_modules


async def test_readiness_follows_its_life(temporal_server: TemporalServer) -> None:
    client = await connected(temporal_server)
    worker = TemporalWorker(client, task_queue=unique("queue"))
    assert worker.not_ready == "it has not started"
    with pytest.raises(AttributeError):
        worker.not_ready = None  # type: ignore[misc]
    async with worker:
        assert worker.is_ready
        assert worker.not_ready is None
    assert not worker.is_ready
    assert worker.not_ready == "it has stopped"


async def test_cancelled_it_drains(temporal_server: TemporalServer) -> None:
    client = await connected(temporal_server)
    worker, ready = TemporalWorker(client, task_queue=unique("queue")), asyncio.Event()
    running = asyncio.create_task(worker.run(ready.set))
    await asyncio.wait_for(ready.wait(), PATIENCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert worker.not_ready == "it has stopped"


async def test_it_sits_out_a_restart_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not ready while the server is away, and among those who poll again by itself. It says both."""
    monkeypatch.setattr("dibs.temporal.worker.worker._LOOKS_EVERY", 0.2)
    with TemporalServer(tmp_path, on_file=True) as server:
        worker = TemporalWorker(await connected(server), task_queue=unique("permits"))

        async def away() -> bool:
            return not worker.is_ready and "is not ready: " in caplog.text

        async def back() -> bool:
            return worker.is_ready and "is ready again" in caplog.text

        async with worker:
            await asyncio.to_thread(server.kill)
            await until(away)
            await asyncio.to_thread(server.start)
            await until(back)
