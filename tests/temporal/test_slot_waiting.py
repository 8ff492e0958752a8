"""What a waiter in slot mode costs: its events are bounded, however long it waits, and how often it asks."""

import random

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from dibs.stores.temporal import ids
from dibs.temporal.slots.acquire import FIRST_ROUND, NEXT_ROUNDS, PAUSE, PROBE, Prober
from dibs.temporal.slots.workflow import PermitSlotInput, PermitSlotWorkflow
from tests.servers.binaries import temporal_program
from tests.temporal.slot_workflows import Holder, Spec
from tests.temporal.workers import count, history_of, replay, unique, worker


def events_of_a_wait(
    seconds: float,
    capacity: int,
    backoff: float,
    longest: float,
    *,
    long: bool = False,
    seed: int = 1,
) -> tuple[int, list[float]]:
    """Of somebody who never finds a free slot; and the pauses."""
    now, events = 1000.0, 0
    pauses = []
    slots = [str(number) for number in range(capacity)]
    prober = Prober(slots, random.Random(seed), now, backoff=backoff, longest=longest)
    while now < 1000.0 + seconds:
        for _ in prober.round(now):
            prober.probed()
            events += PROBE
        pauses.append(prober.pause(now, history_is_long=long))
        now += pauses[-1]
        events += PAUSE
    return events, pauses


@pytest.mark.parametrize("capacity", [1, 4, 100])
@pytest.mark.parametrize(("backoff", "longest"), [(5.0, 60.0), (5.0, 5.0), (0.05, 0.05)])
def test_an_hour_takes_less_than_1000_events(capacity: int, backoff: float, longest: float) -> None:
    for seed in range(5):
        events, _ = events_of_a_wait(3600.0, capacity, backoff, longest, seed=seed)
        assert events < 1000 - 50  # the rest is for what comes after the wait


def test_a_long_history_is_added_to_slowly() -> None:
    events, _ = events_of_a_wait(86_400.0, 4, 5.0, 60.0, long=True)
    assert events < 7500


def test_pauses_grow_and_are_jittered() -> None:
    _, pauses = events_of_a_wait(600.0, 1, 5.0, 60.0)
    bases = [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    for pause, base in zip(pauses, bases, strict=False):
        assert 0.5 * base <= pause <= base
    assert len(set(pauses)) == len(pauses)


def test_each_slot_is_tried_before_any_is_tried_again() -> None:
    prober = Prober(list("abcdef"), random.Random(7), 0.0, backoff=5.0, longest=60.0)
    first = prober.round(0.0)
    assert sorted(first) == list("abcdef")
    later = [slot for _ in range(3) for slot in prober.round(0.0)]
    assert sorted(later[:6]) == list("abcdef")


def test_a_round_is_bounded() -> None:
    prober = Prober([str(n) for n in range(500)], random.Random(7), 0.0, backoff=5.0, longest=60.0)
    assert len(prober.round(0.0)) == FIRST_ROUND
    assert len(prober.round(0.0)) == NEXT_ROUNDS


def test_what_this_workflow_has_itself_is_not_tried() -> None:
    prober = Prober(["0", "1", "2"], random.Random(7), 0.0, backoff=5.0, longest=60.0)
    assert prober.round(0.0, {"0", "1"}) == ["2"]
    assert prober.round(0.0, {"0", "1"}) == ["2"]
    assert prober.round(0.0, {"0", "1", "2"}) == []


def test_the_same_numbers_give_the_same_probes() -> None:
    one, other = (
        Prober([str(n) for n in range(9)], random.Random(3), 0.0, backoff=5.0, longest=60.0)
        for _ in range(2)
    )
    for _ in range(20):
        assert one.round(0.0) == other.round(0.0)
        assert one.pause(0.0) == other.pause(0.0)


@pytest.mark.once
async def test_an_hour_on_a_server_that_skips_time() -> None:
    resource, queue = unique("slots"), unique("queue")
    async with (
        await WorkflowEnvironment.start_time_skipping_v2(
            dev_server_existing_path=str(temporal_program().path),
            dev_server_extra_args=[
                "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true",
                "--dynamic-config-value", 'history.timerProcessorMaxTimeShift="20ms"',
            ],
        ) as environment,
        worker(environment.client, PermitSlotWorkflow, Holder, queue=queue, sandboxed=False),
    ):  # fmt: skip
        client = environment.client
        real = await environment.connect_client()  # whose workflows live in real time
        for slot in "01":
            await real.start_workflow(
                PermitSlotWorkflow.run,
                PermitSlotInput(resource, slot, 20_000.0),
                id=ids.permit_workflow_id(resource, slot),
                task_queue=queue,
            )
        spec = Spec(resource, queue, capacity=2)
        spec.acquire = {"wait": 3600.0, "backoff": 5.0, "ttl": 600.0}
        waiter = await client.start_workflow(
            Holder.run, spec, id=unique("waiter"), task_queue=queue
        )
        with pytest.raises(WorkflowFailureError) as caught:
            await waiter.result()
        assert "within 60 min" in str(caught.value.cause)
        assert f"temporal workflow describe --workflow-id permit:{resource}:0`" in str(
            caught.value.cause
        )
        history = await history_of(client, waiter.id)
        took = history.events[-1].event_time.seconds - history.events[0].event_time.seconds
        assert took >= 3600
        skips = count(history)["WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED"]
        assert len(history.events) - skips < 1000
        assert count(history)["START_CHILD_WORKFLOW_EXECUTION_FAILED"] > 50
        await replay(history, Holder, sandboxed=False)
