"""What tests of slot mode and of activities' locks are given."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import dibs
from tests.servers.temporal import TemporalServer
from tests.temporal.slot_world import SlotWorld, slot_world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(temporal_server: TemporalServer) -> AsyncIterator[SlotWorld]:
    """Workers for permits and their holders."""
    async with slot_world(temporal_server) as found:
        yield found


@pytest.fixture
async def store() -> AsyncIterator[dibs.Client]:
    """A store in memory, of its own."""
    async with dibs.connect("memory://") as client:
        yield client
