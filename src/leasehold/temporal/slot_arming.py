"""A permit's first report: proof that a worker serves it, and what its token is."""

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio import workflow

from leasehold.backends.temporal.ids import permit_id
from leasehold.primitives.telling import span
from leasehold.temporal.failures import NotServed
from leasehold.temporal.slot_permit import SlotPermit

if TYPE_CHECKING:
    from leasehold.temporal.semaphore import Semaphore


async def wait_until_armed(
    permit: SlotPermit, bound: float, semaphore: "Semaphore", *, until: float
) -> None:
    """Until it has reported or ended. Raises `NotServed` where neither comes.

    It can't be ended then, only told to: that takes a worker. The server ends it, at `until`.
    """
    try:
        await workflow.wait_condition(
            lambda: permit.armed or permit.ended,
            timeout=bound,
            timeout_summary="the permit's report",
        )
    except TimeoutError:
        await permit.leave_unserved()
        queue, taken = semaphore.task_queue, permit_id(permit.resource, permit.slot)
        raise NotServed(
            f"nobody serves task queue {queue!r}: {taken} was started there and no worker took it up within "
            f"{span(bound)}. Run `leasehold temporal worker --task-queue {queue}`, or name the queue that "
            f"has one by task_queue= or TEMPORAL_TASK_QUEUE. Slot {permit.slot} stays taken until a worker "
            f"of {queue!r} has come, at the latest until {_moment(until)}; `temporal workflow terminate "
            f"--workflow-id {shlex.quote(taken)}` frees it now. "
            "(A worker with another PermitSlotWorkflow than ours needs armed=False.)"
        ) from None


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
