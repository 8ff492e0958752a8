"""A permit's first report: proof that a worker serves it, and what its token is."""

from typing import TYPE_CHECKING

from temporalio import workflow

from leasehold.temporal.failures import NotServed
from leasehold.temporal.slot_permit import SlotPermit

if TYPE_CHECKING:
    from leasehold.temporal.semaphore import Semaphore


async def wait_until_armed(permit: SlotPermit, bound: float, semaphore: "Semaphore") -> None:
    """Until it has reported or ended. Raises `NotServed` where neither comes."""
    try:
        await workflow.wait_condition(
            lambda: permit.armed or permit.ended,
            timeout=bound,
            timeout_summary="the permit's report",
        )
    except TimeoutError:
        await permit.leave_unserved()
        raise NotServed(
            f"nobody serves task queue {semaphore.task_queue!r}: permit:{permit.resource}:{permit.slot} was "
            f"started there and no worker took it up within {bound:g} s. Run `leasehold temporal worker "
            f"--task-queue {semaphore.task_queue}`, or name the queue that has one by task_queue= or "
            "TEMPORAL_TASK_QUEUE. (A worker with another PermitSlotWorkflow than ours needs armed=False.)"
        ) from None
