"""What all guards do: a write with an older token than the newest that was seen is refused."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import redis

from dibs.fencing import FileFence, RedisFence, SqlFence, StaleToken, Stamped
from dibs.sync import connect
from tests.pages import blocks, run

KEY = b"lock:order:42"


class Thing(NamedTuple):
    """What is guarded: who holds the lock writes a text."""

    write: Callable[[Stamped, str], object]
    read: Callable[[], str]


def row(connection: Any, mark: str) -> Thing:
    """A row of a table."""
    connection.execute("CREATE TABLE thing (text TEXT)")
    connection.execute("INSERT INTO thing VALUES ('')")
    SqlFence().create(connection)
    connection.commit()

    def write(by: Stamped, text: str) -> None:
        try:
            SqlFence().check(by, connection)
            connection.execute(f"UPDATE thing SET text = {mark}", (text,))
            connection.commit()
        except BaseException:
            connection.rollback()
            raise

    return Thing(write, lambda: str(connection.execute("SELECT text FROM thing").fetchone()[0]))


@pytest.fixture(params=["sqlite", "postgres", "redis", "file"])
def thing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Thing]:
    match request.param:
        case "sqlite":
            with closing(sqlite3.connect(tmp_path / "things.db")) as connection:
                yield row(connection, "?")
        case "postgres":
            with closing(psycopg.connect(request.getfixturevalue("postgres_url"))) as server:
                yield row(server, "%s")
        case "redis":
            url = request.getfixturevalue("redis_url")
            with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
                fence = RedisFence(client)
                yield Thing(
                    lambda by, text: fence.call(by, "SET", "thing", text),
                    lambda: str(client.get("thing")),
                )
        case _:
            path = tmp_path / "thing"
            yield Thing(FileFence(path).replace, path.read_text)


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
