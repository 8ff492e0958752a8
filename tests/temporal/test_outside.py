"""Signals from workflow code to one run of another workflow."""

import asyncio
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from dibs.temporal.slots.workflow import signal_run
from tests.temporal.brokers import QUICK

pytestmark = [pytest.mark.once]

HISTORY = Path(__file__).parent / "hurrying.json"
"""One task brings what became of both signals, as under load."""
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"


@workflow.defn
class Hurrying:
    """Gives one signal up as soon as another has arrived."""

    @workflow.run
    async def run(self) -> None:
        given_up = asyncio.create_task(signal_run("a-target-that-has-ended", RUN, "one"))
        await signal_run("another-target", RUN, "two")
        given_up.cancel()
        await asyncio.wait([given_up])


async def test_a_signal_is_given_up_in_the_moment_in_which_its_end_is_told() -> None:
    """To Temporal that is an error in the history, which ends no workflow, and is there at each new try."""
    history = WorkflowHistory.from_json("hurrying", HISTORY.read_text("utf-8"))
    replayer = Replayer(workflows=[Hurrying], workflow_runner=QUICK)
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    assert result.replay_failure is None
