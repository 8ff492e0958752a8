"""What all guards do: a write with an older token than the newest that was seen is refused."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from dibs.fencing import FileFence, RedisFence, SqlFence, StaleToken, Stamped
from dibs.sync import connect
from tests.pages import blocks, run

KEY = b"lock:order:42"


class Sql:
    """A row of a table."""

    def __init__(self, connection: Any, mark: str) -> None:
        self._connection = connection
        self._update = f"UPDATE thing SET text = {mark}"
        connection.execute("CREATE TABLE thing (text TEXT)")
        connection.execute("INSERT INTO thing VALUES ('')")
        SqlFence().create(connection)
        connection.commit()
        self.close = connection.close

    def write(self, by: Stamped, text: str) -> None:
        try:
            SqlFence().check(by, self._connection)
            self._connection.execute(self._update, (text,))
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise

    def read(self) -> str:
        return str(self._connection.execute("SELECT text FROM thing").fetchone()[0])


class Redis:
    """A key."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self.close = self._client.close

    def write(self, by: Stamped, text: str) -> None:
        RedisFence(self._client).call(by, "SET", "thing", text)

    def read(self) -> str:
        return str(self._client.get("thing"))


class File:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, by: Stamped, text: str) -> None:
        FileFence(self._path).replace(by, text)

    def read(self) -> str:
        return self._path.read_text()

    def close(self) -> None:
        """Nothing is open."""


type Thing = Sql | Redis | File


@pytest.fixture(params=["sqlite", "postgres", "redis", "file"])
def thing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Thing]:
    made: Thing
    match request.param:
        case "sqlite":
            made = Sql(sqlite3.connect(tmp_path / "things.db"), "?")
        case "postgres":
            made = Sql(psycopg.connect(request.getfixturevalue("postgres_url")), "%s")
        case "redis":
            made = Redis(request.getfixturevalue("redis_url"))
        case _:
            made = File(tmp_path / "thing")
    with closing(made):
        yield made


def test_tokens_may_rise_and_repeat_but_not_fall(thing: Thing) -> None:
    for token in (5, 5, 9, 1_700_000_000_000_000, 2**53 - 1, 2**53 - 1):
        thing.write((KEY, token), f"by {token}")
    with pytest.raises(StaleToken) as caught:
        thing.write((KEY, 2**53 - 2), "late")
    assert (caught.value.token, caught.value.seen, caught.value.key) == (2**53 - 2, 2**53 - 1, KEY)
    assert thing.read() == f"by {2**53 - 1}"


def test_keys_and_slots_are_apart(thing: Thing) -> None:
    thing.write((KEY, 9), "the first slot")
    thing.write((KEY, 2, 1), "another slot")
    thing.write((b"lock:order:4", 1), "another key")
    thing.write((b"lock:order%3A42\x00\xff", 1), "any bytes")
    with pytest.raises(StaleToken, match="slot 1 is stale"):
        thing.write((KEY, 1, 1), "late")
    assert thing.read() == "any bytes"


def test_of_a_lease_every_slot_counts(thing: Thing) -> None:
    with connect("memory://fencing-slots") as client:
        semaphore = client.semaphore("gpu", 3)
        first, both = semaphore.acquire(), semaphore.acquire(units=2)
        thing.write(both, "both")
        thing.write(first, "a lower token, for another slot")
        both.release()
        with semaphore.acquire() as newer:
            assert newer.slots == (1,)
            thing.write(newer, "newer")
        with pytest.raises(StaleToken, match="semaphore gpu, slot 1 is stale"):
            thing.write(both, "late")
        first.release()
    assert thing.read() == "newer"


SERVER = "redis://localhost:6379/0"


@pytest.mark.multiprocess
def test_the_examples_of_the_page_work(redis_url: str, tmp_path: Path) -> None:
    examples = blocks("fencing.md")
    assert [SERVER in code for code in examples] == [False, True, False]
    told = run("\n".join(examples).replace(SERVER, redis_url), tmp_path).splitlines()
    for line, name in zip(told, ["order:42", "cart:42", "report"], strict=True):
        assert re.match(rf"token \d+ of lock {name} is stale: the resource has already seen", line)
