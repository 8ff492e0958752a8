"""Recorded histories of our workflows, and of those that use them, are what today's code would do."""

from collections.abc import Sequence
from typing import Any

import pytest
from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from dibs.backends.temporal.broker.backlog import Backlog
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from tests.temporal import broker_histories, fair_flows, slot_workflows
from tests.temporal.broker_flows import HastyBroker, HastyMailbox
from tests.temporal.histories import kinds, load, recorded

pytestmark = [pytest.mark.once]

BROKERS = recorded("broker", "sharing", "mailbox", "burst")
SLOTS = recorded("permit", "slot")
FAIR = recorded("fair")
WORKFLOWS: dict[str, Sequence[type]] = {
    **dict.fromkeys(BROKERS, (HastyBroker, HastyMailbox)),
    **dict.fromkeys(SLOTS, (PermitSlotWorkflow, slot_workflows.Holder, slot_workflows.Relay)),
    **dict.fromkeys(FAIR, (fair_flows.Holding, fair_flows.Relay)),
}
NAMES = pytest.mark.parametrize("name", WORKFLOWS)


class First(WorkflowInboundInterceptor):
    """A change that nobody has guarded: something is done before all else."""

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - its name there
        workflow.upsert_memo({"changed": "by this"})
        return await super().execute_workflow(input)


class Last(WorkflowInboundInterceptor):
    """Likewise, when all else is done."""

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - its name there
        try:
            return await super().execute_workflow(input)
        finally:
            workflow.upsert_memo({"changed": "by this"})


class Planted(Interceptor):
    """One of these in every workflow."""

    def __init__(self, kind: type[WorkflowInboundInterceptor]) -> None:
        self._kind = kind

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - its name there
    ) -> type[WorkflowInboundInterceptor]:
        return self._kind


CHANGES: list[tuple[str, type[WorkflowInboundInterceptor]]] = [(name, First) for name in WORKFLOWS]
CHANGES += [(name, Last) for name in WORKFLOWS if name != "burst-2"]  # it was recorded while it ran


async def replay(name: str, *interceptors: Interceptor) -> None:
    """Run today's code against it."""
    replayer = Replayer(
        workflows=WORKFLOWS[name],
        workflow_runner=UnsandboxedWorkflowRunner(),
        interceptors=interceptors,
    )
    await replayer.replay_workflow(load(name))


@pytest.fixture(autouse=True)
def as_recorded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A burst was recorded in small portions."""
    if name.startswith("burst"):
        monkeypatch.setattr(Backlog, "PORTION", broker_histories.PORTION)


@NAMES
async def test_recorded_histories_can_be_replayed(name: str) -> None:
    await replay(name)


@pytest.mark.parametrize(("name", "change"), CHANGES)
async def test_a_recorded_history_shows_a_change(
    name: str, change: type[WorkflowInboundInterceptor]
) -> None:
    with pytest.raises(Exception, match=r"[Nn]ondeterminism|Fatal error in workflow machines"):
        await replay(name, Planted(change))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("permit-released", "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"),  # it has reported
        ("permit-released", "TIMER_CANCELED"),
        ("permit-expired", "TIMER_FIRED"),
        ("permit-retired", "WORKFLOW_EXECUTION_CANCEL_REQUESTED"),
        ("permit-handed-over", "WORKFLOW_EXECUTION_SIGNALED"),
        ("slot-holder", "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"),
        ("slot-waiter", "START_CHILD_WORKFLOW_EXECUTION_FAILED"),
        ("slot-relay-1", "WORKFLOW_EXECUTION_CONTINUED_AS_NEW"),
        ("fair-holder", "TIMER_FIRED"),
        ("fair-waiter", "WORKFLOW_EXECUTION_SIGNALED"),
        ("fair-relay-1", "WORKFLOW_EXECUTION_CONTINUED_AS_NEW"),
        ("burst-1", "MARKER_RECORDED"),
        ("burst-1", "WORKFLOW_EXECUTION_CONTINUED_AS_NEW"),
    ],
)
async def test_what_was_recorded_is_of_interest(name: str, kind: str) -> None:
    assert kind in kinds(load(name))
