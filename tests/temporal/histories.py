"""Histories of workflows: fetched, counted, kept, and replayed against the code of today."""

import gzip
from collections import Counter
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

RECORDED = Path(__file__).parent / "recorded"
"""What the code of an earlier time did, as packed JSON: today's code must do the same."""


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


def recorded(*prefixes: str) -> list[str]:
    """The names of those that are kept and begin so."""
    names = (path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))
    return sorted(name for name in names if name.startswith(prefixes))


def load(name: str) -> WorkflowHistory:
    """One of them."""
    text = gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()).decode()
    return WorkflowHistory.from_json("recorded", text)


def save(name: str, history: WorkflowHistory) -> None:
    """Keep one."""
    RECORDED.mkdir(exist_ok=True)
    packed = gzip.compress(history.to_json().encode(), mtime=0)
    (RECORDED / f"{name}.json.gz").write_bytes(packed)
