"""Programs in the shape of Temporal's guide to distributed locks: only their import lines are ours."""

from datetime import timedelta

from temporalio import activity, workflow

from dibs.temporal import DEFAULT_BACKOFF, DEFAULT_LEASE, Semaphore


@workflow.defn
class Gated:
    """Runs an activity under one of a few permits, and tells it which slot it has."""

    @workflow.run
    async def run(self, gate: str, capacity: int, job: str) -> str:
        permits = Semaphore(gate, capacity=capacity)
        async with permits.acquire(lease=DEFAULT_LEASE, backoff=DEFAULT_BACKOFF / 50) as slot:
            found: str = await workflow.execute_activity(
                "gated_work",
                args=[job, slot],
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=timedelta(seconds=30),
                result_type=str,
            )
            return found


@workflow.defn
class Overdue:
    """Stays in its block for longer than its lease."""

    @workflow.run
    async def run(self, gate: str, lease: float) -> None:
        async with Semaphore(gate, capacity=1).acquire(lease=timedelta(seconds=lease)):
            await workflow.sleep(timedelta(minutes=1))


@activity.defn
async def gated_work(job: str, slot: str) -> str:
    """Work that needs the slot as a text and as a number."""
    activity.heartbeat(job)
    return f"{job} on device {int(slot)}"
