"""A broker on a real server: what it answers, whom it tells, and what it leaves behind."""

import asyncio

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from dibs.core.timing import WINDOW
from dibs.model import Granted, Queued, Refused, Release, Released
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import BriskBroker, HastyBroker, Waiter, serving

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
        assert holder.expires_in > WINDOW
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
