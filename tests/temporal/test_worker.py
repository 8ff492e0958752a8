"""The plugin and the worker, in this process: what they set up, serve, and refuse in workflow code."""

import asyncio
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerDeploymentConfig,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from dibs import Lock
from dibs.model import Granted
from dibs.sides import refuse_in_workflow
from dibs.temporal import (
    DibsBroker,
    DibsPlugin,
    PermitSlotWorkflow,
    TemporalWorker,
)
from dibs.temporal.plugin import _shared
from dibs.temporal.worker.served import WORKFLOWS
from dibs.testing import FaultProxy
from tests.servers.ports import HOST
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import Brokered
from tests.temporal.sandbox_flows import Holds, OwnPermit, Raises, UsesPlainLocks
from tests.temporal.workers import PATIENCE, connected, failure_of, poll, unique, until, worker

pytestmark = pytest.mark.once


async def with_plugin(server: TemporalServer, plugin: DibsPlugin | None = None) -> Client:
    return await Client.connect(server.address, plugins=[plugin or DibsPlugin()])


def types_of(worker: Worker) -> list[type]:
    return list(worker.config(active_config=True)["workflows"])


async def started(client: Client, flow: type, queue: str, *args: Any) -> Any:
    """The handle of a workflow that fails a test if it gets stuck."""
    return await client.start_workflow(
        flow.__name__,
        args=args,
        id=unique("flow"),
        task_queue=queue,
        execution_timeout=timedelta(seconds=PATIENCE),
    )


async def test_a_worker_of_the_permit_queue(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves permits, too; a workflow of the user's own by one of our names stays."""
    client = await connected(temporal_server)
    for theirs, all_of_them in (
        ([], [*WORKFLOWS]),
        ([Holds, PermitSlotWorkflow], [Holds, *WORKFLOWS]),
        ([OwnPermit], [OwnPermit, DibsBroker]),
    ):
        queue = unique("queue")
        monkeypatch.setenv("TEMPORAL_TASK_QUEUE", queue)
        plugins = [DibsPlugin()]
        worker = Worker(client, task_queue=queue, workflows=theirs, plugins=plugins)
        assert types_of(worker) == all_of_them


async def test_twice_is_once(temporal_server: TemporalServer) -> None:
    """At the client, and at the worker; Temporal itself warns of it."""
    queue = unique("queue")
    client = await with_plugin(temporal_server, DibsPlugin(task_queue=queue))
    with pytest.warns(UserWarning, match="The same plugin type"):
        worker = Worker(client, task_queue=queue, plugins=[DibsPlugin(task_queue=queue)])
    assert types_of(worker) == [*WORKFLOWS]
    async with worker:
        await until(lambda: worker.is_running)


@pytest.mark.parametrize("beside", ["an application", "a worker of permits"])
async def test_one_line_serves_everything(temporal_server: TemporalServer, beside: str) -> None:
    """Temporal has one worker a queue and client; it ends with the last that needs it."""
    permits, queue = unique("permits"), unique("queue")
    client = await with_plugin(temporal_server, DibsPlugin(task_queue=permits, serve=True))
    async with AsyncExitStack() as stack:
        if beside == "a worker of permits":
            await stack.enter_async_context(TemporalWorker(client, task_queue=permits))
        async with Worker(client, task_queue=queue, workflows=[Holds]):
            if beside == "an application":
                async with Worker(client, task_queue=unique("queue"), workflows=[Holds]):
                    pass
            flow = await started(client, Holds, queue, unique("resource"), permits)
            slot, module = await flow.result()
    assert slot == "0"
    assert module == id(sys.modules["dibs.temporal.semaphore"]), "it was imported anew"
    assert not _shared[client]


async def test_an_error_of_ours_fails_the_workflow_and_nobody_warns_of_permits_that_are_not_served(
    temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Activities may keep their locks in Redis; workflows that want a broker get an error."""
    plugin = DibsPlugin(task_queue=unique("permits"), backend="memory://")
    client, queue = await with_plugin(temporal_server, plugin), unique("queue")
    async with Worker(client, task_queue=queue, workflows=[Raises]):
        failure = await failure_of(await started(client, Raises, queue))
    assert failure.type == "InvalidName"
    assert not [each for each in caplog.records if each.name.startswith("dibs")]


@pytest.mark.parametrize("plugins", [[], [DibsPlugin()]], ids=["sandboxed", "with the plugin"])
async def test_plain_locks_are_refused_in_workflow_code(
    temporal_server: TemporalServer, plugins: list[DibsPlugin]
) -> None:
    client = await connected(temporal_server)
    async with worker(client, UsesPlainLocks, plugins=plugins) as queue:
        assert await (await started(client, UsesPlainLocks, queue)).result() == []
    refuse_in_workflow(Lock("x"))  # not here


async def test_workflows_of_the_users_own_are_sandboxed(temporal_server: TemporalServer) -> None:
    """Ours needn't be, and theirs have Temporal's own default unless they say otherwise."""
    client = await connected(temporal_server)

    def runner(**options: Any) -> Any:
        worker = TemporalWorker(client, task_queue=unique("queue"), **options)
        return worker._worker.config(active_config=True)["workflow_runner"]

    plain = UnsandboxedWorkflowRunner()
    assert not isinstance(runner(), SandboxedWorkflowRunner)
    assert runner(workflows=[Holds], workflow_runner=plain) is plain
    sandboxed = runner(workflows=[Holds])
    assert isinstance(sandboxed, SandboxedWorkflowRunner)
    assert "dibs" in sandboxed.restrictions.passthrough_modules
    with pytest.raises(TypeError, match="say drain="):
        TemporalWorker(client, graceful_shutdown_timeout=timedelta(minutes=5))


async def test_it_sits_out_an_outage_of_the_server(
    temporal_server: TemporalServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not ready while the server is away; it polls again by itself. It logs both."""
    for name, seconds in (("_LOOKS_EVERY", 0.2), ("_LOOKS_AGAIN", 0.2), ("_PATIENCE", 1.0)):
        monkeypatch.setattr(f"dibs.temporal.worker.worker.{name}", seconds)
    with FaultProxy(HOST, temporal_server.port) as proxy:
        client = await Client.connect(f"{HOST}:{proxy.port}")
        worker, ready = TemporalWorker(client, task_queue=unique("permits")), asyncio.Event()
        assert worker.not_ready == "it has not started"
        running = asyncio.create_task(worker.run(ready.set))
        await asyncio.wait_for(ready.wait(), PATIENCE)
        assert worker.is_ready
        proxy.refuse()
        proxy.cut()
        await until(lambda: not worker.is_ready and "is not ready: " in caplog.text)
        proxy.heal()
        await until(lambda: worker.is_ready and "is ready again" in caplog.text)
        running.cancel()  # it drains
        with pytest.raises(asyncio.CancelledError):
            await running
        assert worker.not_ready == "it has stopped"


async def test_a_broker_goes_over_to_the_next_version(temporal_server: TemporalServer) -> None:
    client, name = await connected(temporal_server), unique("deployment")
    here = Brokered(client, unique("queue"))

    def served_by(number: str) -> TemporalWorker:
        deployment = WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(name, number),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
        )
        return TemporalWorker(client, task_queue=here.queue, deployment_config=deployment)

    async def make_current(number: str) -> None:
        request = SetWorkerDeploymentCurrentVersionRequest(
            namespace="default", deployment_name=name, build_id=number, identity="a test"
        )

        async def made() -> bool:
            try:
                await client.workflow_service.set_worker_deployment_current_version(
                    request, timeout=timedelta(seconds=5)
                )
            except RPCError:
                return False  # the server does not know of it yet
            return True

        await poll(made)

    async with served_by("1"):
        await make_current("1")
        first = await here.ask(here.acquire("a", ttl=600.0))
        async with served_by("2"):
            await make_current("2")
    async with served_by("2"), asyncio.timeout(60):
        again = await here.ask(here.acquire("a", ttl=600.0))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.token == first.token
    described = (await here.handle.describe()).raw_description
    versions = described.workflow_execution_info.versioning_info
    assert versions.version.endswith(".2")
