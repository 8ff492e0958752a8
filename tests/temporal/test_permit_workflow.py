"""The permit's workflow by itself, as any client may start it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError, WorkflowAlreadyStartedError

from dibs.stores.temporal import ids
from dibs.temporal.slots.workflow import (
    FORMAT,
    Adoption,
    PermitSlotInput,
    PermitSlotWorkflow,
    PermitStatus,
)
from tests.servers.temporal import TemporalServer
from tests.temporal.workers import (
    connected,
    count,
    history_of,
    replay,
    unique,
    until_closed,
    worker,
)

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]

type Handle = WorkflowHandle[Any, str]


class Permits:
    def __init__(self, client: Client, queue: str) -> None:
        self.client = client
        self.queue = queue

    async def start(self, lease: float = 60.0, resource: str = "", **more: Any) -> Handle:
        resource = resource or unique("slots")
        handle: Handle = await self.client.start_workflow(
            ids.PERMIT,
            PermitSlotInput(resource, "0", lease, **more),
            id=ids.permit_workflow_id(resource, "0"),
            task_queue=self.queue,
            result_type=str,
        )
        return handle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def permits(temporal_server: TemporalServer) -> AsyncIterator[Permits]:
    client = await connected(temporal_server)
    async with worker(client, PermitSlotWorkflow) as queue:  # in the sandbox
        yield Permits(client, queue)


async def test_released(permits: Permits) -> None:
    permit = await permits.start()
    with pytest.raises(WorkflowAlreadyStartedError):
        await permits.start(resource=permit.id.split(":")[1])
    await permit.signal("release")
    assert await permit.result() == "released"
    history = await history_of(permits.client, permit.id)
    assert len(history.events) <= 11
    await replay(history, PermitSlotWorkflow)


async def test_expired_and_extended(permits: Permits) -> None:
    permit = await permits.start(2.0)
    before = await permit.query("status", result_type=PermitStatus)
    until: float = await permit.execute_update("extend", 3.0)
    assert until > before.deadline
    assert await permit.execute_update("extend", 0.5) == until  # never shorter
    assert await permit.result() == "lease_expired"
    history = await history_of(permits.client, permit.id)
    assert history.events[-1].event_time.ToMicroseconds() / 1e6 >= until
    assert count(history)["TIMER_STARTED"] == 2  # one for the lease, one more for its renewal
    await replay(history, PermitSlotWorkflow)


async def test_never_extended_beyond_max_hold(permits: Permits) -> None:
    permit = await permits.start(1.0, max_hold_seconds=1.5)
    began = (await permit.query("status", result_type=PermitStatus)).token / 1e6
    until: float = await permit.execute_update("extend", 60.0)
    assert until == pytest.approx(began + 1.5, abs=0.01)
    assert await permit.result() == "lease_expired"


async def test_cancelled_it_ends_at_once_or_after_its_quarantine(permits: Permits) -> None:
    one = await permits.start()
    await one.cancel()
    with pytest.raises(WorkflowFailureError) as caught:
        await one.result()
    assert isinstance(caught.value.cause, CancelledError)

    other = await permits.start(quarantine_seconds=1.0)
    await other.cancel()
    assert await other.result() == "quarantine_over"
    history = await history_of(permits.client, other.id)
    took = (
        history.events[-1].event_time.ToMicroseconds()
        - history.events[0].event_time.ToMicroseconds()
    )
    assert took >= 1_000_000
    await replay(history, PermitSlotWorkflow)


async def test_released_in_its_quarantine(permits: Permits) -> None:
    permit = await permits.start(quarantine_seconds=60.0)
    await permit.signal("retire")
    status = await permit.query("status", result_type=PermitStatus)
    assert status.retiring
    await permit.signal("release")
    assert await permit.result() == "released"


async def test_handed_over_it_outlives_the_cancellation_that_comes_of_it(permits: Permits) -> None:
    permit = await permits.start(quarantine_seconds=60.0)
    await permit.signal("hand_over")
    await permit.cancel()
    status = await permit.query("status", result_type=PermitStatus)
    assert not status.retiring
    await permit.signal("release")
    assert await permit.result() == "released"
    history = await history_of(permits.client, permit.id)
    assert count(history)["WORKFLOW_EXECUTION_CANCEL_REQUESTED"] == 1
    await replay(history, PermitSlotWorkflow)


async def test_taken_up_by_a_workflow_that_is_gone_its_lease_runs_out(permits: Permits) -> None:
    """An earlier run has used it."""
    gone = await permits.start()
    await gone.signal("release")
    await gone.result()
    permit = await permits.start(0.1)
    assert gone.result_run_id is not None
    await permit.signal("adopt", Adoption(gone.id, gone.result_run_id, 1.0))
    assert await permit.result() == "lease_expired"


async def test_of_a_later_format_it_is_refused(permits: Permits) -> None:
    permit = await permits.start(format=FORMAT + 1)
    with pytest.raises(WorkflowFailureError) as caught:
        await permit.result()
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "IncompatibleVersion"
    assert "update that first" in caught.value.cause.message


async def test_what_a_later_release_adds_to_its_input_is_ignored(permits: Permits) -> None:
    resource = unique("slots")
    permit: Handle = await permits.client.start_workflow(
        ids.PERMIT,
        {"resource": resource, "slot": "0", "lease_seconds": 30.0, "colour": "blue"},
        id=ids.permit_workflow_id(resource, "0"),
        task_queue=permits.queue,
        result_type=str,
    )
    await permit.signal("release")
    assert await permit.result() == "released"
    assert await until_closed(permits.client, permit.id) == "COMPLETED"
