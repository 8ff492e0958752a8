"""A plain lock in workflow code fails the workflow, and says what to write."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner

from dibs import Lock
from dibs.sides import refuse_in_workflow
from dibs.temporal import DibsPlugin
from tests.servers.temporal import TemporalServer
from tests.temporal.guarded_flows import Tries, Uses
from tests.temporal.workers import connected, unique, worker

pytestmark = pytest.mark.once

NAMED = {
    "Lock": "`from dibs.temporal import Lock`",
    "Semaphore": "`from dibs.temporal import Semaphore`",
    "wraps": "`from dibs.temporal import Lock`",
    "bound": "`from dibs.temporal import Lock`",
    "blocking": "`from dibs.temporal import Lock`",
    "blocking wraps": "`from dibs.temporal import Lock`",
    "AllOf": "dibs's AllOf",
    "RWLock": "dibs's RWLock",
    "TaskLock": "dibs's TaskLock",
    "LeaderElection": "dibs's LeaderElection",
    "client": "dibs's Client",
    "connect": "dibs's Client",
}

MODES: dict[str, dict[str, Any]] = {
    "sandboxed": {},
    "with the plugin": {"plugins": [DibsPlugin()]},
    "unsandboxed": {"workflow_runner": UnsandboxedWorkflowRunner()},
}


@pytest.mark.parametrize("mode", MODES)
async def test_each_is_refused_by_name(temporal_server: TemporalServer, mode: str) -> None:
    client = await connected(temporal_server)
    async with worker(client, Tries, Uses, **MODES[mode]) as queue:
        told = await client.execute_workflow(
            Tries.run,
            list(NAMED),
            id=unique("tries"),
            task_queue=queue,
            execution_timeout=timedelta(seconds=30),
        )
        assert {way: NAMED[way] in said for way, said in told.items()} == dict.fromkeys(NAMED, True)
        with pytest.raises(WorkflowFailureError) as failed:
            await client.execute_workflow(
                Uses.run,
                id=unique("uses"),
                task_queue=queue,
                execution_timeout=timedelta(seconds=30),
            )
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("NotInWorkflow", True)


async def test_elsewhere_nothing_is_refused() -> None:
    import temporalio.workflow

    assert not temporalio.workflow.in_workflow()
    refuse_in_workflow(Lock("x"))
