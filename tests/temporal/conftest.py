from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import dibs
from tests.servers.temporal import TemporalServer
from tests.temporal.permit_world import World, permit_world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(temporal_server: TemporalServer) -> AsyncIterator[World]:
    """Workers for permits, brokers and their holders."""
    async with permit_world(temporal_server) as found:
        yield found


@pytest.fixture
async def store() -> AsyncIterator[dibs.Client]:
    """A store in memory, of its own."""
    async with dibs.connect("memory://") as client:
        yield client
