"""The shared servers come empty, and a missing one skips, or fails where CI must have it."""

import psycopg
import pytest
import redis

from tests.servers.binaries import MissingServer
from tests.servers.fixtures import missing_is_skipped
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


@pytest.mark.parametrize("_time", [1, 2])
def test_the_redis_is_empty(redis_url: str, redis_server: RedisServer, _time: int) -> None:
    client = redis.Redis.from_url(redis_url)
    assert client.dbsize() == 0
    client.set("left", "behind")
    assert redis_server.client().dbsize() == 1


@pytest.mark.parametrize("_time", [1, 2])
def test_the_database_is_empty(
    postgres_url: str,
    postgres_server: PostgresServer,
    _time: int,
) -> None:
    assert f":{postgres_server.port}/" in postgres_url
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE left_behind ()")


def test_a_missing_server_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="install it"), missing_is_skipped():
        raise MissingServer("install it")


def test_a_missing_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install it"), missing_is_skipped():
        raise MissingServer("install it")
