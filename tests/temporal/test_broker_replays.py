"""What today's code tells, and in which order, is what the code of then told: signals go to whom they went.

Temporal's own replay compares a signal's place in the history, and not its target.
"""

from typing import Any

import pytest
from temporalio.worker import (
    Interceptor,
    Replayer,
    SignalExternalWorkflowInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from dibs.backends.temporal.broker.backlog import Backlog
from dibs.backends.temporal.broker.workflow import DibsBroker
from tests.temporal import broker_histories
from tests.temporal.broker_flows import HastyBroker
from tests.temporal.histories import load, recorded

pytestmark = [pytest.mark.once]

NAMES = recorded("broker", "sharing", "burst", "missed")
"""`missed` is of a release that told of each workflow that had closed by itself."""


class Listener(Interceptor):
    """Notes who is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - its name there
    ) -> type[WorkflowInboundInterceptor]:
        told = self.told

        class Outbound(WorkflowOutboundInterceptor):
            async def signal_external_workflow(
                self,
                input: SignalExternalWorkflowInput,  # noqa: A002 - its name there
            ) -> None:
                told.append(input.workflow_id)
                await super().signal_external_workflow(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound


def targets(events: Any) -> list[str]:
    found = (each.signal_external_workflow_execution_initiated_event_attributes for each in events)
    return [each.workflow_execution.workflow_id for each in found if each.signal_name]


@pytest.mark.parametrize("name", NAMES)
async def test_it_tells_the_same_ones_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name.startswith("burst"):
        monkeypatch.setattr(Backlog, "PORTION", broker_histories.PORTION)
    history, listener = load(name), Listener()
    replayer = Replayer(
        workflows=[DibsBroker if name.startswith("missed") else HastyBroker],
        workflow_runner=UnsandboxedWorkflowRunner(),
        interceptors=[listener],
    )
    await replayer.replay_workflow(history)
    told = targets(history.events)
    assert told
    assert listener.told[: len(told)] == told
