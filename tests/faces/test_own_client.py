"""`connect(client=…)`: the store that a program's own client is connected to."""

from typing import Any

import pytest
import redis
import redis.asyncio

import dibs
import dibs.sync
from tests.servers.redis import RedisServer


async def test_a_client_of_redis_py(redis_server: RedisServer, redis_url: str) -> None:
    theirs = redis.asyncio.from_url(redis_url)
    async with dibs.connect(client=theirs) as client, client.lock("a") as lease:
        assert lease.token > 0
        assert (await client.status("a")).holders
    await theirs.aclose()


def test_closing_ours_leaves_theirs_open(redis_url: str) -> None:
    with redis.from_url(redis_url) as theirs:
        client = dibs.sync.connect(client=theirs)
        lease = client.lock("a").acquire()
        client.close()
        assert lease.lost
        assert theirs.ping()


@pytest.mark.parametrize("module", [dibs, dibs.sync])
def test_what_is_no_client_is_told(module: Any) -> None:
    with pytest.raises(dibs.NotConfigured, match=r"client= is a builtins\.dict.*redis"):
        module.connect(client={})
    with pytest.raises(TypeError, match="a URL and client="):
        module.connect("memory://", client=object())
