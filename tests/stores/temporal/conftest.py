"""What the tests of the Temporal store share."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from tests.servers.temporal import TemporalServer
from tests.stores.redis.both_worlds import Side
from tests.stores.temporal.serving import brokers_for


@pytest.fixture(scope="module")
def url(temporal_server: TemporalServer) -> Iterator[str]:
    """A store whose queue is served."""
    with brokers_for(temporal_server) as url:
        yield url


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    """Backends of each world."""
    mode: Any = request.param
    world: Literal["async", "blocking"] = mode
    return Side(world)
