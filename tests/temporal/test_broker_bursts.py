"""What comes to a broker all at once, as after a while without a worker, is applied in portions."""

import asyncio
import json
from dataclasses import fields
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from dibs.backends.temporal.broker import workflow as broker_leaving
from dibs.backends.temporal.broker.backlog import Backlog
from dibs.backends.temporal.broker.letters import call_in
from dibs.backends.temporal.broker.room import MESSAGE
from dibs.backends.temporal.protocol import wire
from dibs.backends.temporal.protocol.wire import Call, unpack_call
from dibs.model import Queued
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import (
    QUICK,
    BriskBroker,
    Brokered,
    HastyBroker,
    asked_at_once,
    unserved,
)
from tests.temporal.workers import worker

pytestmark = [pytest.mark.once]


async def numbers(here: Brokered) -> list[int]:
    """Of the calls, in the order in which the server brought them."""
    signals = [each.workflow_execution_signaled_event_attributes for each in await here.events()]
    letters = [json.loads(each.input.payloads[0].data) for each in signals if each.signal_name]
    return [each["number"] for each in letters[1:]]


@pytest.mark.parametrize("message", [MESSAGE, 9_000])
async def test_nobody_is_lost_and_all_stay_in_order_over_several_runs(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch, message: int
) -> None:
    """Also where what has not been applied yet is too much for a message."""
    monkeypatch.setattr(Backlog, "PORTION", 10)
    monkeypatch.setattr(broker_leaving, "MESSAGE", message)
    async with unserved(temporal_server) as here:
        crowd = await asked_at_once(here, 45)
        arrived = await numbers(here)
        async with worker(here.client, HastyBroker, queue=here.queue, workflow_runner=QUICK):
            positions = await crowd.result()
            assert [positions[number] for number in arrived] == list(range(45))
            assert (await here.status()).waiting == 45
            chain = await here.chain()
    await check_replay(here, HastyBroker, chain)
    carried = [_first_payload(events) for events in chain[1:]]
    assert all(len(each) < message for each in carried)
    if message == MESSAGE:
        assert any(b'"backlog"' in each for each in carried)


async def test_a_client_s_call_comes_after_what_was_there_before(
    temporal_server: TemporalServer,
) -> None:
    """With portions as they are."""
    async with unserved(temporal_server) as here:
        crowd = await asked_at_once(here, Backlog.PORTION + 30)
        late = asyncio.create_task(here.ask(here.acquire("late")))
        async with worker(here.client, BriskBroker, queue=here.queue, workflow_runner=QUICK):
            found = await late
            assert isinstance(found, Queued)
            assert found.position == Backlog.PORTION + 30
            await crowd.result()
            chain = await here.chain()
    await check_replay(here, BriskBroker, chain)


async def check_replay(here: Brokered, kind: type, chain: list[list[Any]]) -> None:
    """Today's code does it again, and has done it at the first try."""
    replayer = Replayer(workflows=[kind], workflow_runner=QUICK)
    for events in chain:
        assert not any(e.HasField("workflow_task_failed_event_attributes") for e in events)
        await replayer.replay_workflow(WorkflowHistory(here.handle.id, events))


def _first_payload(events: list[Any]) -> bytes:
    found: bytes = events[0].workflow_execution_started_event_attributes.input.payloads[0].data
    return found


async def test_a_broker_that_began_before_does_as_its_history_says(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has applied all at once: with today's portions its history can be replayed."""
    async with unserved(temporal_server) as here:
        crowd = await asked_at_once(here, 20)
        async with worker(here.client, BriskBroker, queue=here.queue, workflow_runner=QUICK):
            await crowd.result()
            history = WorkflowHistory(here.handle.id, await here.events())
    monkeypatch.setattr(Backlog, "PORTION", 5)
    await Replayer(workflows=[BriskBroker], workflow_runner=QUICK).replay_workflow(history)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"commands": None},
        {"commands": ["x"]},
        {"commands": [], "number": "1"},
        {"commands": [], "fast": 1},
        {"commands": [], "at": 5},
    ],
)
def test_what_is_no_call_is_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="call"):
        call_in(wrong)


def test_every_field_of_a_call_is_looked_at_on_its_way_in() -> None:
    """One that is not in the table would be dropped without a word."""
    assert set(wire._CALL) == {each.name for each in fields(Call)}


def test_a_call_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    packed = {"commands": [], "number": 3, "colour": "blue", "at": [4.0, 5], "format": 9}
    assert unpack_call(packed) == Call([], 3, at=(4.0, 5), format=9)
