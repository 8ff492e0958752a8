"""A broker on a real server: what it answers, whom it tells, and what it leaves behind."""

import asyncio
import json
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from dibs.core.codec import decode_notification
from dibs.core.timing import MAX_CLAIM_TIMEOUT
from dibs.model import Granted, Queued, Refused, Release, Released, Revoke
from dibs.stores.temporal.wire import BLOCKED, BrokerCall, Waited, read_call
from dibs.temporal.broker.workflow import DibsBroker
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import (
    QUICK,
    BriskBroker,
    Brokered,
    HastyBroker,
    Waiter,
    asked_at_once,
    serving,
    unserved,
)
from tests.temporal.workers import worker

pytestmark = [pytest.mark.once]


async def test_a_plain_client_is_answered_at_once(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        first = await here.ask(here.acquire("a"))
        second = await here.ask(here.acquire("b", inbox="nobody"))
        assert isinstance(first, Granted)
        assert isinstance(second, Queued)
        assert await here.ask(Release(here.key, "a")) == Released()
        third = await here.ask(here.acquire("b"))
        assert isinstance(third, Granted)
        assert third.token > first.token
        status = await here.status()
        assert [holder.owner for holder in status.holders] == ["owner of b"]


async def test_the_capacity_is_one_for_all_callers(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        for name in ("a", "b"):
            await here.ask(here.acquire(name, capacity=2))
        await here.ask(Release(here.key, "a"))
        narrower = await here.ask(here.acquire("c", capacity=1, queue=False))
        assert isinstance(narrower, Refused)
        assert [holder.slots for holder in narrower.holders] == [(1,)]


async def test_more_may_wait_than_updates_may_be_in_flight(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        replies = await asyncio.gather(*(here.ask(here.acquire(f"w{n}")) for n in range(30)))
        assert sorted(getattr(reply, "position", -1) for reply in replies) == list(range(30))


async def test_workflows_are_served_in_order_of_arrival(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        first = await here.ask(here.acquire("a"))
        waiters = []
        for number in range(5):
            waiters.append(await here.waiter(f"w{number}", hold=0))
            await here.until_waiting(number + 1)
        await here.ask(Release(here.key, "a"))
        tokens = [await waiter.result() for waiter in waiters]
        assert isinstance(first, Granted)
        assert tokens == sorted({first.token, *tokens})[1:]
        lengths = {len(await here.events(waiter)) for waiter in waiters}
        assert max(lengths) - min(lengths) <= 6


async def test_nothing_is_lost_when_it_continues_as_new_under_load(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address, HastyBroker, Waiter) as here:
        kept = await here.ask(here.acquire("kept", ttl=600.0, capacity=3))
        held: set[int] = set()
        tokens: list[int] = []

        async def client(name: int) -> None:
            for turn in range(4):
                entry_id = f"client {name} {turn}"
                while True:
                    reply = await here.ask(here.acquire(entry_id, capacity=3, inbox=f"c{name}"))
                    if isinstance(reply, Granted):
                        break
                    await asyncio.sleep(0.05)
                (slot,) = reply.slots
                assert slot not in held
                held.add(slot)
                tokens.append(reply.token)
                await asyncio.sleep(0.01)
                held.discard(slot)
                assert await here.ask(Release(here.key, entry_id)) == Released()

        waiters = [await here.waiter(f"w{number}", hold=0, capacity=3) for number in range(12)]
        await asyncio.gather(*(client(name) for name in range(4)))
        tokens += [await waiter.result() for waiter in waiters]
        assert len(set(tokens)) == len(tokens) == 28
        again = await here.ask(here.acquire("kept", ttl=600.0, capacity=3))
        assert isinstance(kept, Granted)
        assert isinstance(again, Granted)
        assert again.token == kept.token
        status = await here.status()
        assert len(status.holders) == 1
        assert not status.waiting
        assert len(await here.chain()) >= 4


async def test_time_alone_passes_a_lease_on_to_a_workflow(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        dead = await here.ask(here.acquire("dead", ttl=0.5))
        waiter = await here.waiter("w", hold=0)
        assert isinstance(dead, Granted)
        assert await waiter.result() > dead.token
        fired = [
            event for event in await here.events() if event.HasField("timer_fired_event_attributes")
        ]
        assert len(fired) == 1


async def test_a_waiter_that_vanished_is_passed_over(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        vanished = await here.waiter("w1")
        await here.until_waiting(1)
        after = await here.waiter("w2", hold=0)
        await here.until_waiting(2)
        await vanished.terminate()
        await here.ask(Release(here.key, "a"))
        assert await after.result()
        assert not (await here.status()).holders


async def test_the_broker_claims_what_a_workflow_was_told(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        waiter = await here.waiter("w", hold=-1, ttl=60)
        await here.until_waiting(1)
        await here.ask(Release(here.key, "a"))
        while True:
            (holder,) = (await here.status()).holders
            if holder.state == "held":
                break
            await asyncio.sleep(0.05)
        assert holder.expires_in > MAX_CLAIM_TIMEOUT
        await waiter.signal("leave")
        assert await waiter.result() == holder.token


async def test_two_hundred_wait_and_are_served_in_order(temporal_server: TemporalServer) -> None:
    plain = UnsandboxedWorkflowRunner()  # so many workflows start sooner
    served = (BriskBroker, Waiter)
    async with serving(temporal_server.address, *served, workflow_runner=plain) as here:
        slots = 10
        for slot in range(slots):
            await here.ask(here.acquire(f"a{slot}", ttl=600.0, capacity=slots))
        waiters = await asyncio.gather(
            *(here.waiter(f"w{number}", hold=0, capacity=slots) for number in range(200))
        )
        await here.until_waiting(200)
        for slot in range(slots):
            await here.ask(Release(here.key, f"a{slot}"))
        tokens = {waiter.id: await waiter.result() for waiter in waiters}
        assert sorted(tokens, key=lambda name: tokens[name]) == await here.asked()
        lengths = [len(await here.events(waiter)) for waiter in waiters[::20]]
        assert max(lengths) <= 30
        assert max(lengths) - min(lengths) <= 5
        assert len(await here.chain()) > 2


async def numbers(here: Brokered) -> list[int]:
    """Of the calls, in the order in which the server brought them."""
    signals = [each.workflow_execution_signaled_event_attributes for each in await here.events()]
    letters = [json.loads(each.input.payloads[0].data) for each in signals if each.signal_name]
    return [each["number"] for each in letters[1:]]


async def test_nobody_is_lost_and_all_stay_in_order_over_several_runs(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HastyBroker, "PORTION", 10)
    async with unserved(temporal_server) as here:
        crowd = await asked_at_once(here, 45)
        arrived = await numbers(here)
        async with worker(here.client, HastyBroker, queue=here.queue, workflow_runner=QUICK):
            positions = await crowd.result()
            assert [positions[number] for number in arrived] == list(range(45))
            assert (await here.status()).waiting == 45
            for number in arrived[:20]:
                await here.ask(Release(here.key, f"c{number}"))
            assert (await here.status()).waiting == 25
            chain = await here.chain()
    assert len(chain) > 2
    await check_replay(here, HastyBroker, chain)


async def test_a_client_s_call_comes_after_what_was_there_before(
    temporal_server: TemporalServer,
) -> None:
    """With portions as they are."""
    async with unserved(temporal_server) as here:
        crowd = await asked_at_once(here, DibsBroker.PORTION + 30)
        late = asyncio.create_task(here.ask(here.acquire("late")))
        async with worker(here.client, BriskBroker, queue=here.queue, workflow_runner=QUICK):
            found = await late
            assert isinstance(found, Queued)
            assert found.position == DibsBroker.PORTION + 30
            await crowd.result()
            chain = await here.chain()
    await check_replay(here, BriskBroker, chain)


async def check_replay(here: Brokered, kind: type, chain: list[list[Any]]) -> None:
    """Today's code does it again, and has done it at the first try."""
    replayer = Replayer(workflows=[kind], workflow_runner=QUICK)
    for events in chain:
        assert not any(e.HasField("workflow_task_failed_event_attributes") for e in events)
        await replayer.replay_workflow(WorkflowHistory(here.handle.id, events))


# -- plain clients that wait ------------------------------------------------------------------------


def events_of(found: Waited) -> list[str]:
    return [decode_notification(each, b"lock:x", "").event for each in found.notifications]


async def test_a_client_that_waits_learns_of_its_grant_and_nothing_twice(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        await here.ask(here.acquire("b", inbox="me"))
        waiting = asyncio.create_task(here.wait("me"))
        assert await here.ask(Release(here.key, "a")) == Released()
        found = await waiting
        assert events_of(found) == ["granted"]
        again = asyncio.create_task(here.wait("me", found.upto))
        await here.ask(Release(here.key, "b"))
        last = await again
        assert (last.notifications, last.ahead) == ([], None)


async def test_what_came_before_it_waits_is_kept_for_it(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        await here.ask(here.acquire("b", inbox="me"))
        await here.ask(Release(here.key, "a"))
        assert events_of(await here.wait("me")) == ["granted"]


async def test_a_holder_that_waits_learns_of_its_revocation(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a", inbox="me"))
        waiting = asyncio.create_task(here.wait("me"))
        await here.ask(Revoke(here.key, None, "upgrade"))
        assert "revoked" in events_of(await waiting)


async def test_those_in_front_wait_and_the_others_are_sent_off(
    temporal_server: TemporalServer,
) -> None:
    """A server has ten updates of a run in flight: calls get through, and the next one comes to the front."""
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        many = BLOCKED + 5
        for number in range(many):
            await here.ask(here.acquire(f"w{number}", inbox=f"i{number}"))
        waits = [asyncio.create_task(here.wait(f"i{number}")) for number in range(many)]
        assert [(await wait).ahead for wait in waits[BLOCKED:]] == [1, 2, 3, 4, 5]
        assert not any(wait.done() for wait in waits[:BLOCKED])
        async with asyncio.timeout(5):  # it would take many seconds with ten that block
            await here.ask(Release(here.key, "w4"))
            assert (await waits[4]).ahead is None
            next_one = asyncio.create_task(here.wait(f"i{BLOCKED}"))
            await here.ask(Release(here.key, "a"))
        assert events_of(await waits[0]) == ["granted"]
        await here.ask(Revoke(here.key, None, "the end", now=True))
        for number in range(many):
            await here.ask(Release(here.key, f"w{number}"))
        for wait in (*waits[:4], next_one):
            await wait


async def test_of_one_inbox_only_the_last_wait_blocks(temporal_server: TemporalServer) -> None:
    """A client whose call broke off has left one behind."""
    async with serving(temporal_server.address) as here:
        await here.ask(here.acquire("a"))
        await here.ask(here.acquire("b", inbox="me"))
        left = asyncio.create_task(here.wait("me"))
        await until_accepted(here, 3)
        last = asyncio.create_task(here.wait("me"))
        assert (await left).ahead == 0
        await here.ask(Release(here.key, "a"))
        assert events_of(await last) == ["granted"]


async def until_accepted(here: Brokered, many: int) -> None:
    """So many updates are in its history."""
    kind = "workflow_execution_update_accepted_event_attributes"
    while sum(each.HasField(kind) for each in await here.events()) < many:
        await asyncio.sleep(0.02)


async def test_those_who_wait_go_on_when_it_continues_as_new(
    temporal_server: TemporalServer,
) -> None:
    async with serving(temporal_server.address, HastyBroker, Waiter) as here:
        await here.ask(here.acquire("a", ttl=600.0))

        async def beat() -> None:  # who does not is passed over
            for number in range(5):
                await here.ask(here.acquire(f"w{number}", inbox=f"i{number}", waiter_ttl=600.0))

        await beat()
        granted: list[int] = []

        async def wait(number: int) -> None:
            after = 0
            while True:
                found = await here.wait(f"i{number}", after)
                after = found.upto
                if "granted" in events_of(found):
                    granted.append(number)
                    await here.ask(Release(here.key, f"w{number}"))
                    return
                assert found.ahead is not None

        waits = [asyncio.create_task(wait(number)) for number in range(5)]
        while len(await here.chain()) < 3:
            await beat()
        assert not granted
        await here.ask(Release(here.key, "a"))
        await asyncio.gather(*waits)
        assert granted == [*range(5)]
        chain = await here.chain()
    await check_replay(here, HastyBroker, chain)


# -- what can't be read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        None,
        {"commands": None},
        {"commands": [], "number": "1"},
        {"commands": [], "fast": 1},
        {"commands": [], "run_id": None},
    ],
)
def test_what_is_no_call_is_told(wrong: Any) -> None:
    with pytest.raises(ValueError, match="call"):
        read_call(wrong)


def test_a_call_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    packed = {"commands": [], "number": 3, "colour": "blue", "format": 9}
    assert read_call(packed) == BrokerCall([], 3, format=9)
