"""The guide's programs run when only their import lines change, with the guide's own set-up.

That is one worker, without a plugin, for the application's workflows and `PermitSlotWorkflow`.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from dibs.temporal import (
    DEFAULT_LEASE,
    MAX_BACKOFF,
    TEMPORAL_TASK_QUEUE,
    PermitSlotInput,
    PermitSlotWorkflow,
    connect_temporal_client,
    options,
    permit_workflow_id,
)
from tests.servers.temporal import TemporalServer
from tests.temporal.guide_programs import Gated, Overdue, gated_work
from tests.temporal.workers import unique, until

pytestmark = pytest.mark.once


@pytest.fixture
async def client(temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Connected as the guide's worker is: by Temporal's own settings."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.delenv("TEMPORAL_TASK_QUEUE", raising=False)
    return await connect_temporal_client()


def permit_of(client: Client, gate: str) -> WorkflowHandle[object, str]:
    """The latest permit of the first slot."""
    return client.get_workflow_handle(permit_workflow_id(gate, "0"), result_type=str)


def unsandboxed(
    client: Client, queue: str, workflows: Sequence[type]
) -> AbstractAsyncContextManager[object]:
    """A worker that sees what a test has patched."""
    return Worker(
        client,
        task_queue=queue,
        workflows=workflows,
        workflow_runner=UnsandboxedWorkflowRunner(),
    )


async def test_they_run_on_one_queue_whatever_its_name(client: Client) -> None:
    """In the sandbox, as without a plugin; each activity gets its slot as an argument."""
    gate, queue = unique("gate"), unique("jobs")
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Gated, PermitSlotWorkflow],
        activities=[gated_work],
    ):
        jobs = [
            await client.start_workflow(
                Gated.run, args=[gate, 1, f"job {number}"], id=unique("job"), task_queue=queue
            )
            for number in range(3)
        ]
        for number, job in enumerate(jobs):
            assert await job.result() == f"job {number} on device 0"
    permit = permit_of(client, gate)
    about = await permit.describe()
    assert about.task_queue == queue
    assert await permit.result() == "released"
    limit = about.raw_description.execution_config.workflow_execution_timeout.ToTimedelta()
    assert DEFAULT_LEASE < limit <= DEFAULT_LEASE + timedelta(seconds=30)


async def test_a_permit_that_nobody_serves_leaves_its_slot_soon_after_its_lease(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker doesn't know `PermitSlotWorkflow`; the holder is told, and the server ends the permit."""
    monkeypatch.setattr(options, "REPORT_TIMEOUT", 0.5)
    monkeypatch.setattr(options, "MIN_REPORT_TIMEOUT", 0.5)
    monkeypatch.setattr(options, "GRACE", 0.5)
    gate, queue = unique("gate"), unique("jobs")
    async with unsandboxed(client, queue, [Overdue]):
        with pytest.raises(WorkflowFailureError) as failed:
            await client.execute_workflow(
                Overdue.run, args=[gate, 2.0], id=unique("job"), task_queue=queue
            )
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "BackendUnavailable"
        assert "register PermitSlotWorkflow with this worker" in cause.message

        async def freed() -> bool:
            about = await permit_of(client, gate).describe()
            return about.status is WorkflowExecutionStatus.TIMED_OUT

        await until(freed)


async def test_a_lease_that_ends_while_its_holder_lives_says_so(client: Client) -> None:
    """In the result of the permit, by which operators tell it from a release."""
    gate, queue = unique("gate"), unique("jobs")
    async with unsandboxed(client, queue, [Overdue, PermitSlotWorkflow]):
        with pytest.raises(WorkflowFailureError) as failed:
            await client.execute_workflow(
                Overdue.run, args=[gate, 1.0], id=unique("job"), task_queue=queue
            )
        assert isinstance(failed.value.cause, ApplicationError)
        assert failed.value.cause.type == "LeaseLost"
        assert await permit_of(client, gate).result() == "lease_expired"


async def test_a_permit_can_be_started_by_hand(client: Client) -> None:
    queue, gate = unique("jobs"), unique("gate")
    async with unsandboxed(client, queue, [PermitSlotWorkflow]):
        permit = await client.start_workflow(
            PermitSlotWorkflow.run,
            PermitSlotInput(resource=gate, slot="0", lease_seconds=60.0),
            id=permit_workflow_id(gate, "0"),
            task_queue=queue,
        )
        await permit.signal("release")
        assert await permit.result() == "released"


def test_the_constants_are_what_the_guide_calls_so() -> None:
    assert permit_workflow_id("gpu-pool", "2") == "permit:gpu-pool:2"
    assert (timedelta(minutes=10), timedelta(minutes=1)) == (DEFAULT_LEASE, MAX_BACKOFF)
    assert TEMPORAL_TASK_QUEUE == "distributed-lock-tq"
