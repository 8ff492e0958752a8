"""A permit's first report: proof that a worker serves it, and what its token is."""

from datetime import UTC, datetime

from temporalio import workflow

from dibs.backends.temporal.protocol.ids import permit_id
from dibs.backends.temporal.protocol.unserved import serve, terminate, unserved
from dibs.primitives.telling import span
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
        queue, taken = pool.task_queue, permit_id(permit.resource, permit.slot)
        raise NotServed(
            f"{unserved(queue)}: {taken} was started there and no worker took it up within {span(bound)}: "
            f"{serve(queue)}; or name the queue that has one by task_queue= or TEMPORAL_TASK_QUEUE. Slot "
            f"{permit.slot} stays taken until a worker of {queue!r} has come, at the latest until "
            f"{_moment(until)}; {terminate(taken)} frees it now. "
            "(A worker with another PermitSlotWorkflow than ours needs armed=False.)"
        ) from None


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
