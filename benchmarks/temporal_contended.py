"""Turns without a lock: what a Temporal server itself needs for the steps of eight who contend for one.

A workflow in the middle tells each of the others in turn by a signal that it may go on, and hears by a
signal that it is done. `benchmarks.temporal_modes` measures it beside the ways to a lock.
"""

from datetime import timedelta
from uuid import uuid4

from temporalio import workflow
from temporalio.client import Client

BARE = "bare signals"


@workflow.defn
class Told:
    """Runs one activity once it is told to, and says when that is done."""

    def __init__(self) -> None:
        self.goes = False

    @workflow.signal
    def go(self) -> None:
        """It is its turn."""
        self.goes = True

    @workflow.run
    async def run(self, middle: str, activity_name: str) -> None:
        await workflow.wait_condition(lambda: self.goes)
        await workflow.execute_activity(activity_name, start_to_close_timeout=timedelta(minutes=1))
        await workflow.get_external_workflow_handle(middle).signal("done")


@workflow.defn
class Middle:
    """Gives the turns."""

    def __init__(self) -> None:
        self.done = 0

    @workflow.signal(name="done")
    def is_done(self) -> None:
        """One turn is over."""
        self.done += 1

    @workflow.run
    async def run(self, told: list[str]) -> None:
        for number, each in enumerate(told):
            await workflow.get_external_workflow_handle(each).signal("go")
            await workflow.wait_condition(lambda number=number: self.done > number)  # type: ignore[misc]


FLOWS = [Told, Middle]


async def take_turns(client: Client, queue: str, activity_name: str, many: int) -> None:
    """So many workflows run the activity, one after the other."""
    middle = f"middle-{uuid4()}"
    handles = [
        await client.start_workflow(
            Told.run, args=[middle, activity_name], id=f"{middle}-{number}", task_queue=queue
        )
        for number in range(many)
    ]
    told = [each.id for each in handles]
    await client.execute_workflow(Middle.run, told, id=middle, task_queue=queue)
    for each in handles:
        await each.result()
