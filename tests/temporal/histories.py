"""Histories of workflows: fetched, counted and replayed against the code of today."""

from collections import Counter

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner


async def history_of(
    client: Client, workflow_id: str, run_id: str | None = None
) -> WorkflowHistory:
    """All events of one run."""
    return await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()


def kinds(history: WorkflowHistory) -> list[str]:
    """The types of its events, in order, without `EVENT_TYPE_`."""
    return [
        EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events
    ]


def count(history: WorkflowHistory) -> Counter[str]:
    """How many events of each type."""
    return Counter(kinds(history))


async def replay(history: WorkflowHistory, *workflows: type, sandboxed: bool = True) -> None:
    """Run today's code against it. Raises if that would have done anything else."""
    replayer = (
        Replayer(workflows=list(workflows))
        if sandboxed
        else Replayer(workflows=list(workflows), workflow_runner=UnsandboxedWorkflowRunner())
    )
    await replayer.replay_workflow(history)
