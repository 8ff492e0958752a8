"""A broker's look at runs that tell it nothing when they end."""

import asyncio
from itertools import count

import pytest

from dibs.backends.temporal.broker.watch import Watch
from dibs.model import Lost, Release, Renew
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from dibs.temporal.worker.liveness import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import HastyBroker, serving
from tests.temporal.test_broker_sharing import Pool

pytestmark = [pytest.mark.once]


async def test_it_looks_in_time_however_often_the_broker_continues_as_new(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is shorter than the time between two looks."""
    monkeypatch.setattr(Watch, "EVERY", 2.0)
    served = HastyBroker, PermitSlotWorkflow
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        pool = Pool(here)
        await pool.try_for("a")
        while len(await pool.chain()) < 2:
            await pool.ask(Renew(pool.key, "a", 30.0))
        await pool.permit(0).terminate()
        async with asyncio.timeout(15):
            while not isinstance(found := await pool.ask(Renew(pool.key, "a", 30.0)), Lost):
                await asyncio.sleep(0.02)
        assert found.reason == "revoked"


async def test_it_looks_in_time_however_briefly_a_permit_is_used_each_time(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nobody's again and again, and the broker keeps it for the next."""
    monkeypatch.setattr(Watch, "EVERY", 1.0)
    served = HastyBroker, PermitSlotWorkflow
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        pool = Pool(here)
        ids = map(str, count())
        await _use(pool, next(ids))
        while len(await pool.chain()) < 2:
            await _use(pool, next(ids))
        first = (await pool.permit(0).describe()).run_id
        await pool.permit(0).terminate()
        async with asyncio.timeout(15):
            while (await pool.permit(0).describe()).run_id == first:
                await _use(pool, next(ids))


async def _use(pool: Pool, entry_id: str) -> None:
    """For a moment."""
    await pool.try_for(entry_id)
    await pool.ask(Release(pool.key, entry_id))
