"""What the tests of the Redis store share."""

from collections.abc import Iterator

import pytest

from tests.backends.redis.ledger_scripted import Scripted
from tests.servers.redis import RedisServer


@pytest.fixture
def scripted(redis_server: RedisServer) -> Iterator[Scripted]:
    """The ledger in Lua on an empty server."""
    subject = Scripted(redis_server)
    subject.redis.flushall()
    yield subject
    subject.close()
