"""The guard for Redis, by redis-py's blocking and asyncio clients."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from dibs.fencing import AsyncRedisFence, RedisFence, StaleToken

KEY = b"lock:cart:42"


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Any]:
    client: Any = redis.Redis.from_url(redis_url, decode_responses=request.param)
    yield client
    client.close()


def test_any_command_on_one_key(client: Any) -> None:
    fence = RedisFence(client)
    assert fence.call((KEY, 8), "HSET", "cart:42", "apples", 3) == 1
    assert fence.call((KEY, 8), "HINCRBY", "cart:42", "apples", 2) == 5
    assert fence.call((KEY, 8), "GET", "nothing") is None
    client.script_flush()  # as after a restart: the script is sent again
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fence.call((KEY, 9), "INCR", "cart:42")
    with pytest.raises(StaleToken):  # whatever came of the command, its token was seen
        fence.call((KEY, 8), "DEL", "cart:42")
    assert client.hlen("cart:42") == 1
    assert fence.call((KEY, 9), "DEL", "cart:42") == 1
    RedisFence(client, prefix="{cart:42}:fence:").call((KEY, 8), "SET", "{cart:42}", "x")
    assert int(client.get("{cart:42}:fence:lock:cart:42#0")) == 8
    assert client.ttl("{cart:42}:fence:lock:cart:42#0") == -1


def test_nothing_is_written_where_the_token_can_not_be(client: Any, redis_url: str) -> None:
    client.execute_command("ACL", "SETUSER", "few", "on", "nopass", "~*", "&*", "+@all", "-set")
    user = redis.Redis.from_url(redis_url, username="few", password="any", decode_responses=True)
    with pytest.raises(redis.ResponseError):
        RedisFence(user).call((KEY, 9), "HSET", "cart:42", "apples", 3)
    assert not client.exists("cart:42")
    user.close()
    client.execute_command("ACL", "DELUSER", "few")


async def test_by_an_asyncio_client(redis_url: str) -> None:
    client: Any = redis.asyncio.Redis.from_url(redis_url)
    try:
        fence = AsyncRedisFence(client)
        await fence.call((KEY, 9), "SET", "cart:42", "mine")
        assert await fence.call((KEY, 9), "APPEND", "cart:42", "!") == 5
        with pytest.raises(StaleToken) as caught:
            await fence.call((KEY, 8), "SET", "cart:42", "late")
        assert caught.value.seen == 9
        assert await client.get("cart:42") == b"mine!"
        with pytest.raises(TypeError, match="AsyncRedisFence"):
            RedisFence(client)
        with pytest.raises(TypeError, match="use RedisFence"):
            AsyncRedisFence(redis.Redis())
    finally:
        await client.aclose()
