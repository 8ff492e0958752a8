"""Histories of workflows: fetched, counted, and replayed against the code of today."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

RECORDED = Path(__file__).parent / "recorded"
"""Histories of earlier releases, as JSON."""


async def history_of(
    client: Client, workflow_id: str, run_id: str | None = None
) -> WorkflowHistory:
    """All events of one run."""
    return await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()


def kinds(history: WorkflowHistory) -> list[str]:
    """The types of its events, in order, without their prefix."""
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


async def replay_all(
    client: Client, workflow_ids: Iterable[str], *workflows: type, sandboxed: bool = True
) -> None:
    """Likewise, each workflow's latest run."""
    for workflow_id in workflow_ids:
        await replay(await history_of(client, workflow_id), *workflows, sandboxed=sandboxed)


def recorded(name: str, workflow_id: str = "recorded") -> WorkflowHistory:
    """A history that was saved as `recorded/{name}.json`."""
    return WorkflowHistory.from_json(workflow_id, (RECORDED / f"{name}.json").read_text("utf-8"))


async def record(client: Client, workflow_id: str, name: str) -> None:
    """Save a history; by hand, when a release goes out."""
    RECORDED.mkdir(exist_ok=True)
    found = await history_of(client, workflow_id)
    (RECORDED / f"{name}.json").write_text(found.to_json(), "utf-8")
