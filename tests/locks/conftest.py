"""A store under a clock that is moved by hand, and two clients of it, for tests in a loop."""

from collections.abc import AsyncIterator

import pytest

from dibs import Client
from dibs.testing import ManualClock
from tests.locks.worlds import World


@pytest.fixture
def w() -> World:
    """The store and its clock, on the side of asyncio."""
    return World("async")


@pytest.fixture
def clock(w: World) -> ManualClock:
    """Stands still until the test moves it."""
    return w.clock


@pytest.fixture
async def client(w: World) -> AsyncIterator[Client]:
    """The client that a test means if it means only one."""
    client: Client = w.client
    yield client
    await client.close()


@pytest.fixture
def others(w: World) -> Client:
    """Another client, as if of another process."""
    client: Client = w.another()
    return client
