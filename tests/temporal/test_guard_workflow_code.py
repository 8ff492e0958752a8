"""A plain lock in workflow code fails the workflow, and says what to write."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner

from leasehold import Lock
from leasehold.faces.loops import refuse_in_workflow
from leasehold.temporal import LeaseholdPlugin
from tests.servers.temporal import TemporalServer
from tests.temporal.guarded_flows import Tries, Uses
from tests.temporal.workers import connected, unique, worker

pytestmark = pytest.mark.once

NAMED = {
    "Lock": "`from leasehold.temporal import Lock`",
    "Semaphore": "`from leasehold.temporal import Semaphore`",
    "wraps": "`from leasehold.temporal import Lock`",
    "bound": "`from leasehold.temporal import Lock`",
    "blocking": "`from leasehold.temporal import Lock`",
    "blocking wraps": "`from leasehold.temporal import Lock`",
    "AllOf": "`from leasehold.temporal import Lock`",
    "RWLock": "leasehold's RWLock",
    "TaskLock": "leasehold's TaskLock",
    "LeaderElection": "leasehold's LeaderElection",
    "client": "leasehold's Client",
    "connect": "leasehold's Client",
}

MODES: dict[str, dict[str, Any]] = {
    "sandboxed": {},
    "with the plugin": {"plugins": [LeaseholdPlugin()]},
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
