"""How a workflow's call gets to a broker: by a signal, and where none runs one is started first."""

from collections.abc import Callable
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from dibs.backends.temporal.protocol import ids, wire
from dibs.backends.temporal.workflows.outside import GONE
from dibs.core.names import shown

STARTS = 10
"""A broker that ends as often right after it was started will do so again."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker of a key is to be found. By its ID alone: it continues as new."""

    key: bytes
    queue: str
    """Where it is started if it doesn't run."""

    @property
    def id(self) -> str:
        """Its workflow ID."""
        return ids.broker_id(self.key)

    @property
    def named(self) -> str:
        """The key, for people."""
        return shown(self.key)

    async def deliver(
        self, call: wire.Call, wanted: Callable[[], bool], started: Callable[[], None] | None
    ) -> bool:
        """Bring the call to it; tell whether it is in its history.

        Where none runs it is started only if somebody wants to be told of that.

        Raises `ApplicationError` where the server refuses. To be run in a task that nobody cancels: the
        SDK takes a cancellation of these steps for one of what they do.
        """
        handle = workflow.get_external_workflow_handle(self.id)
        for _ in range(STARTS):
            if not wanted():
                return False
            try:
                await handle.signal(ids.APPLY, call)
                return True
            except ApplicationError as error:
                if error.type != GONE:
                    raise
            if started is None or not wanted():
                return False
            if await self._start():
                started()
        raise ApplicationError(f"the broker {self.id} ends as soon as it is started")

    async def _start(self) -> bool:
        """Start it, unless somebody just has: False. It outlives this workflow."""
        try:
            handle = await workflow.start_child_workflow(
                ids.BROKER,
                wire.BrokerInput(wire.text_of(self.key)),
                id=self.id,
                task_queue=self.queue,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                static_summary=f"broker of {self.named}",
            )
        except WorkflowAlreadyStartedError:
            return False
        handle.add_done_callback(_look_at)
        return True


def _look_at(child: workflow.ChildWorkflowHandle[object, object]) -> None:
    """However the broker ends, it is no error of this workflow's that nobody has looked at."""
    if not child.cancelled():
        child.exception()
