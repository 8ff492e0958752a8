"""The cluster that most tests of the scheduler have."""

from collections.abc import AsyncIterator

import pytest

from tests.tasks.places import Cluster, cluster


@pytest.fixture
async def place() -> AsyncIterator[Cluster]:
    """Processes that share a store in memory, under a clock that is moved by hand."""
    async with cluster() as made:
        yield made
