"""A workflow that holds a permit, in the sandbox of a worker with our plugin."""

import sys

from temporalio import workflow

from dibs.temporal import Semaphore


@workflow.defn
class Holds:
    """Holds a permit for a moment."""

    @workflow.run
    async def run(self, resource: str, queue: str) -> tuple[str, int]:
        """The slot, and which copy of our module this is."""
        async with Semaphore(resource, capacity=1, task_queue=queue).acquire() as permit:
            return permit.slot, id(sys.modules["dibs.temporal.semaphore"])


@workflow.defn(name="PermitSlotWorkflow", sandboxed=False)
class OwnPermit:
    """Somebody's own, such as the guide's."""

    @workflow.run
    async def run(self) -> None: ...
