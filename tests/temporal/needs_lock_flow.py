"""A workflow for Temporal's sandbox, which takes in its activities without passing them through."""

from datetime import timedelta

from temporalio import activity, workflow

from dibs.temporal import current_lock, needs_lock


@activity.defn
@needs_lock("report:{day}", capacity=2)
async def report(day: str) -> str:
    """Writes nothing."""
    return f"{day}: {current_lock().key}"


@workflow.defn
class Reports:
    """Runs one."""

    @workflow.run
    async def run(self, day: str) -> str:
        return await workflow.execute_activity(
            report, day, schedule_to_close_timeout=timedelta(seconds=30)
        )
