"""A client under a clock that is moved by hand, for tests that are about asyncio only."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from dibs import Client, connect
from dibs.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """Stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
async def client(clock: ManualClock) -> AsyncIterator[Client]:
    """Of a store of its own, which keeps time by `clock`."""
    client: Any = connect(f"memory://{uuid4()}", clock=clock)
    yield client
    await client.close()
