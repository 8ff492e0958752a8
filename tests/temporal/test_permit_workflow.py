"""The permit's workflow by itself, as any client may start it, and in programs as in Temporal's guide."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.exceptions import CancelledError, WorkflowAlreadyStartedError

from dibs.stores.temporal import ids
from dibs.temporal import (
    DEFAULT_LEASE,
    PermitSlotWorkflow,
    connect_temporal_client,
    options,
    permit_workflow_id,
)
from dibs.temporal.slots.workflow import FORMAT, PermitStatus, signal_run
from tests.servers.temporal import TemporalServer
from tests.temporal.sandbox_flows import Gated, Overdue, gated_work
from tests.temporal.workers import (
    connected,
    count,
    failure_of,
    replay,
    unique,
    until_closed,
    worker,
)

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]

type Handle = WorkflowHandle[Any, str]


@dataclass
class Permits:
    client: Client
    queue: str

    async def start(self, lease: float = 60.0, resource: str = "", **more: Any) -> Handle:
        """`more` as a dict, so that it can have what a later release has."""
        resource = resource or unique("slots")
        handle: Handle = await self.client.start_workflow(
            ids.PERMIT,
            {"resource": resource, "slot": "0", "lease_seconds": lease, **more},
            id=permit_workflow_id(resource, "0"),
            task_queue=self.queue,
            result_type=str,
        )
        return handle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def permits(temporal_server: TemporalServer) -> AsyncIterator[Permits]:
    client = await connected(temporal_server)
    async with worker(client, PermitSlotWorkflow) as queue:  # in the sandbox
        yield Permits(client, queue)


async def test_released_with_a_short_history(permits: Permits) -> None:
    permit = await permits.start(colour="blue")  # a later release's field is ignored
    with pytest.raises(WorkflowAlreadyStartedError):
        await permits.start(resource=permit.id.split(":")[1])
    await permit.signal("release")
    assert await permit.result() == "released"
    history = await permit.fetch_history()
    assert len(history.events) <= 11
    await replay(history, PermitSlotWorkflow, sandboxed=True)


async def test_expired_and_extended(permits: Permits) -> None:
    permit = await permits.start(1.0)
    before: PermitStatus = await permit.query("status", result_type=PermitStatus)
    until: float = await permit.execute_update("extend", 2.0)
    assert until > before.deadline
    assert await permit.execute_update("extend", 0.5) == until  # never shorter
    assert await permit.result() == "lease_expired"
    history = await permit.fetch_history()
    assert history.events[-1].event_time.ToMicroseconds() / 1e6 >= until
    assert count(history)["TIMER_STARTED"] == 2  # one for the lease, one more for its renewal
    await replay(history, PermitSlotWorkflow, sandboxed=True)


async def test_cancelled_it_ends_at_once_or_after_its_quarantine_or_its_release(
    permits: Permits,
) -> None:
    one = await permits.start()
    await one.cancel()
    with pytest.raises(WorkflowFailureError) as caught:
        await one.result()
    assert isinstance(caught.value.cause, CancelledError)

    other = await permits.start(quarantine_seconds=1.0)
    await other.cancel()
    assert await other.result() == "quarantine_over"
    history = await other.fetch_history()
    first, last = (history.events[at].event_time.ToMicroseconds() for at in (0, -1))
    assert last - first >= 1_000_000
    await replay(history, PermitSlotWorkflow, sandboxed=True)

    third = await permits.start(quarantine_seconds=60.0)
    await third.signal("retire")
    status: PermitStatus = await third.query("status", result_type=PermitStatus)
    assert status.retiring
    await third.signal("release")
    assert await third.result() == "released"


async def test_of_a_later_format_it_is_refused(permits: Permits) -> None:
    failure = await failure_of(await permits.start(format=FORMAT + 1))
    assert failure.type == "IncompatibleVersion"
    assert "update that first" in failure.message


HURRYING = Path(__file__).with_name("hurrying.json")
"""One task brings what became of both signals, as under load."""
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"


@workflow.defn
class Hurrying:
    """Gives one signal up as soon as another has arrived."""

    @workflow.run
    async def run(self) -> None:
        given_up = asyncio.create_task(signal_run("a-target-that-has-ended", RUN, "one"))
        await signal_run("another-target", RUN, "two")
        given_up.cancel()
        await asyncio.wait([given_up])


async def test_a_signal_is_given_up_in_the_moment_in_which_its_end_is_told() -> None:
    """To Temporal that is an error in the history, which ends no workflow, and is there at each new try."""
    history = WorkflowHistory.from_json("hurrying", HURRYING.read_text("utf-8"))
    await replay(history, Hurrying)


@pytest.fixture
async def client(temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Connected as the guide's worker is: by Temporal's own settings."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.delenv("TEMPORAL_TASK_QUEUE", raising=False)
    return await connect_temporal_client()


def permit_of(client: Client, gate: str) -> Handle:
    """The latest permit of the first slot."""
    return client.get_workflow_handle(permit_workflow_id(gate, "0"), result_type=str)


async def overdue(client: Client, gate: str, queue: str) -> Any:
    """What a workflow that outstays its lease fails with."""
    return await failure_of(
        await client.start_workflow(
            Overdue.run, args=[gate, 1.0], id=unique("job"), task_queue=queue
        )
    )


@pytest.mark.asyncio(loop_scope="function")
async def test_they_run_on_one_queue_whatever_its_name(client: Client) -> None:
    """In the sandbox; each activity gets its slot as an argument."""
    gate = unique("gate")
    async with worker(client, Gated, PermitSlotWorkflow, activities=[gated_work]) as queue:
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


@pytest.mark.asyncio(loop_scope="function")
async def test_a_permit_that_nobody_serves_leaves_its_slot_soon_after_its_lease(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker doesn't know `PermitSlotWorkflow`; the holder is told, and the server ends the permit."""
    for name in ("REPORT_TIMEOUT", "MIN_REPORT_TIMEOUT", "GRACE"):
        monkeypatch.setattr(options, name, 0.5)
    gate = unique("gate")
    async with worker(client, Overdue, sandboxed=False) as queue:
        failure = await overdue(client, gate, queue)
        assert failure.type == "BackendUnavailable"
        assert "register PermitSlotWorkflow with this worker" in failure.message
        assert await until_closed(client, permit_workflow_id(gate, "0")) == "TIMED_OUT"


@pytest.mark.asyncio(loop_scope="function")
async def test_a_lease_that_ends_while_its_holder_lives_says_so(client: Client) -> None:
    """In the result of the permit, by which operators tell it from a release."""
    gate = unique("gate")
    async with worker(client, Overdue, PermitSlotWorkflow, sandboxed=False) as queue:
        assert (await overdue(client, gate, queue)).type == "LeaseLost"
        assert await permit_of(client, gate).result() == "lease_expired"
