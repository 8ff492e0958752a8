"""Signals from workflow code to one run of another workflow."""

import asyncio
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import EventType, SignalExternalWorkflowExecutionFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from dibs.temporal.slots.workflow import signal_run
from tests.temporal.brokers import QUICK

pytestmark = [pytest.mark.once]

GONE, THERE = "a-target-that-has-ended", "another-target"
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"


@workflow.defn
class Hurrying:
    """Gives one signal up as soon as another has arrived."""

    @workflow.run
    async def run(self) -> None:
        given_up = asyncio.create_task(signal_run(GONE, RUN, "one"))
        await signal_run(THERE, RUN, "two")
        given_up.cancel()
        await asyncio.wait([given_up])


def history() -> WorkflowHistory:
    """What became of both is told by one task, as under load."""
    events: list[HistoryEvent] = []

    def add(kind: str, **attributes: Any) -> None:
        name = f"{kind.lower()}_event_attributes"
        event_type = EventType.Value(f"EVENT_TYPE_{kind}")
        event = HistoryEvent(event_id=len(events) + 1, event_type=event_type)
        event.event_time.seconds = 1_800_000_000 + len(events)
        getattr(event, name).SetInParent()
        for each, value in attributes.items():
            field = getattr(getattr(event, name), each)
            if hasattr(field, "CopyFrom"):
                field.CopyFrom(value)
            else:
                setattr(getattr(event, name), each, value)
        events.append(event)

    def task() -> None:
        at = len(events) + 1
        add("WORKFLOW_TASK_SCHEDULED", task_queue=TaskQueue(name="queue"))
        add("WORKFLOW_TASK_STARTED", scheduled_event_id=at)
        add("WORKFLOW_TASK_COMPLETED", scheduled_event_id=at, started_event_id=at + 1)

    def signal(target: str, name: str) -> None:
        add(
            "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED",
            workflow_task_completed_event_id=4,
            workflow_execution=WorkflowExecution(workflow_id=target, run_id=RUN),
            signal_name=name,
        )

    add(
        "WORKFLOW_EXECUTION_STARTED",
        workflow_type=WorkflowType(name="Hurrying"),
        task_queue=TaskQueue(name="queue"),
        original_execution_run_id=RUN,
        first_execution_run_id=RUN,
    )
    task()
    signal(THERE, "two")
    signal(GONE, "one")
    add("EXTERNAL_WORKFLOW_EXECUTION_SIGNALED", initiated_event_id=5)
    not_found = "EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND"
    cause = f"SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_{not_found}"
    add(
        "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED",
        initiated_event_id=6,
        cause=SignalExternalWorkflowExecutionFailedCause.Value(cause),
    )
    task()
    add("WORKFLOW_EXECUTION_COMPLETED", workflow_task_completed_event_id=11)
    return WorkflowHistory("hurrying", events)


async def test_a_signal_is_given_up_in_the_moment_in_which_its_end_is_told() -> None:
    """To Temporal that is an error in the history, which ends no workflow, and is there at each new try."""
    replayer = Replayer(workflows=[Hurrying], workflow_runner=QUICK)
    result = await replayer.replay_workflow(history(), raise_on_replay_failure=False)
    assert result.replay_failure is None
