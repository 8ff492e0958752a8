"""A broker's look at runs that tell it nothing when they end."""

import asyncio

import pytest

from dibs.backends.temporal.broker.watch import Watch
from dibs.model import Granted, Inspect
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import HastyBroker, Waiter, serving

pytestmark = [pytest.mark.once]


async def test_it_looks_in_time_however_often_the_broker_continues_as_new(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is shorter than the time between two looks."""
    monkeypatch.setattr(Watch, "EVERY", 2.0)
    served = HastyBroker, Waiter
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        await here.ask(Inspect(here.key))
        holder = await here.waiter("held", hold=-1, ttl=600, fast=True)
        while not (await here.status()).holders:
            await asyncio.sleep(0.02)
        await here.ask(here.acquire("next", ttl=600.0, patience=600.0))
        while len(await here.chain()) < 2:
            await here.ask(Inspect(here.key))
        await holder.terminate()
        async with asyncio.timeout(15):
            again = here.acquire("next", ttl=600.0, patience=600.0)
            while not isinstance(await here.ask(again), Granted):
                await asyncio.sleep(0.02)
