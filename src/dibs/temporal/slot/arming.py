"""A permit's first report: proof that a worker serves it, and what its token is."""

from datetime import UTC, datetime

from temporalio import workflow

from dibs.backends.temporal.protocol.ids import permit_workflow_id
from dibs.backends.temporal.protocol.unserved import serve, terminate, unserved
from dibs.primitives.messages import span
from dibs.temporal.failures import NotServed
from dibs.temporal.permits.pool import Pool
from dibs.temporal.slot.permit import SlotPermit


async def wait_until_armed(permit: SlotPermit, bound: float, pool: Pool, *, until: float) -> None:
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
        queue, taken = queue_of(pool), permit_workflow_id(permit.resource, permit.slot)
        mend = serve(queue)
        if queue == workflow.info().task_queue:
            mend = "register PermitSlotWorkflow with this worker, as DibsPlugin does"
        raise NotServed(
            f"{unserved(queue, ' for permits')}: {taken} was started there and no worker took it up within "
            f"{span(bound)}: {mend}; or name the queue that has one by task_queue= or TEMPORAL_TASK_QUEUE. "
            f"Slot {permit.slot} stays taken until a worker of {queue!r} has come, at the latest until "
            f"{_moment(until)}; {terminate(taken)} frees it now. "
            "(A worker with another PermitSlotWorkflow than ours needs armed=False.)"
        ) from None


def queue_of(pool: Pool) -> str:
    """The task queue of its permits: the one that was named, else that of this workflow."""
    return pool.task_queue or workflow.info().task_queue


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
