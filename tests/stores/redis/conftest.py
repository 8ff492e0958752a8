"""What the tests of the Redis store share."""

from collections.abc import Iterator

import pytest

from tests.servers.redis import RedisServer
from tests.stores.redis.ledger_scripted import Scripted


@pytest.fixture
def scripted(redis_server: RedisServer) -> Iterator[Scripted]:
    """The ledger in Lua on an empty server."""
    subject = Scripted(redis_server)
    subject.redis.flushall()
    yield subject
    subject.close()
