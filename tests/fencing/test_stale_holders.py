"""What all guards do: a late write is refused, and would have got in without the guard."""

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from dibs.fencing import FileFence, RedisFence, SqlFence, StaleToken, Stamped
from dibs.sync import connect
from tests.pages import blocks, run
from tests.stores.sides import forked

KEY = b"lock:order:42"


class Sql:
    """Two rows of a table: one that compares tokens, and one that believes everybody."""

    def __init__(self, connection: Any, mark: str) -> None:
        self._connection = connection
        self._update = f"UPDATE thing SET text = {mark} WHERE name = {mark}"
        connection.execute("CREATE TABLE IF NOT EXISTS thing (name TEXT, text TEXT)")
        if not connection.execute("SELECT 1 FROM thing").fetchone():
            connection.execute("INSERT INTO thing VALUES ('guarded', ''), ('unguarded', '')")
            SqlFence().create(connection)
        connection.commit()
        self.close = connection.close

    def write(self, by: Stamped, text: str) -> None:
        try:
            SqlFence().check(by, self._connection)
            self._connection.execute(self._update, (text, "guarded"))
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise

    def write_unguarded(self, text: str) -> None:
        self._connection.execute(self._update, (text, "unguarded"))
        self._connection.commit()

    def read(self) -> tuple[str, str]:
        """What stands in the guarded place, and in the other."""
        rows = self._connection.execute("SELECT text FROM thing ORDER BY name").fetchall()
        self._connection.rollback()
        return rows[0][0], rows[1][0]


class Redis:
    """Two keys."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self.close = self._client.close

    def write(self, by: Stamped, text: str) -> None:
        RedisFence(self._client).call(by, "SET", "thing:guarded", text)

    def write_unguarded(self, text: str) -> None:
        self._client.set("thing:unguarded", text)

    def read(self) -> tuple[str, str]:
        return self._client.get("thing:guarded"), self._client.get("thing:unguarded")


class Files:
    """Two files."""

    def __init__(self, folder: str) -> None:
        self._guarded, self._unguarded = Path(folder, "guarded"), Path(folder, "unguarded")

    def write(self, by: Stamped, text: str) -> None:
        FileFence(self._guarded).replace(by, text)

    def write_unguarded(self, text: str) -> None:
        self._unguarded.write_text(text)

    def read(self) -> tuple[str, str]:
        return self._guarded.read_text(), self._unguarded.read_text()

    def close(self) -> None:
        """Nothing is open."""


type Thing = Sql | Redis | Files


def thing_at(kind: str, place: str) -> Thing:
    if kind == "sqlite":
        return Sql(sqlite3.connect(place, timeout=60), "?")
    if kind == "postgres":
        return Sql(psycopg.connect(place), "%s")
    return Redis(place) if kind == "redis" else Files(place)


@pytest.fixture(params=["sqlite", "postgres", "redis", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    kind: str = request.param
    if kind in ("postgres", "redis"):
        return kind, request.getfixturevalue(f"{kind}_url")
    return kind, str(tmp_path if kind == "file" else tmp_path / "things.db")


@pytest.fixture
def thing(where: tuple[str, str]) -> Iterator[Thing]:
    with closing(thing_at(*where)) as thing:
        thing.write_unguarded("nothing")
        yield thing


def test_tokens_may_rise_and_repeat_but_not_fall(thing: Thing) -> None:
    for token in (5, 5, 9, 1_700_000_000_000_000, 2**53 - 1, 2**53 - 1):
        thing.write((KEY, token), f"by {token}")
    with pytest.raises(StaleToken) as caught:
        thing.write((KEY, 2**53 - 2), "late")
    assert (caught.value.token, caught.value.seen, caught.value.key) == (2**53 - 2, 2**53 - 1, KEY)
    assert thing.read()[0] == f"by {2**53 - 1}"


def test_keys_and_slots_are_apart(thing: Thing) -> None:
    thing.write((KEY, 9), "the first slot")
    thing.write((KEY, 2, 1), "another slot")
    thing.write((b"lock:order:4", 1), "another key")
    thing.write((b"lock:order%3A42\x00\xff", 1), "any bytes")
    with pytest.raises(StaleToken, match="slot 1 is stale"):
        thing.write((KEY, 1, 1), "late")
    assert thing.read()[0] == "any bytes"


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
    assert thing.read()[0] == "newer"


@pytest.mark.once
@pytest.mark.multiprocess
def test_a_late_write_is_refused_and_would_have_got_in(
    thing: Thing, where: tuple[str, str], tmp_path: Path
) -> None:
    """Write while a holder stands still, and let it write what it was about to."""
    store = f"sqlite:///{tmp_path}/leases.db"
    ours, theirs = Pipe()

    def hold() -> None:
        with connect(store) as client, closing(thing_at(*where)) as thing:
            lease = client.lock("thing", ttl=0.6, auto_renew=False).acquire()
            thing.write(lease, "early")  # from here on it believes that it may write
            theirs.send(lease.token)
            theirs.recv()  # here it is stopped, for longer than its lease lasts
            thing.write_unguarded("late")
            with pytest.raises(StaleToken) as stale:
                thing.write(lease, "late")
            theirs.send((stale.value.token, stale.value.seen))

    paused = forked(hold)
    try:
        assert ours.poll(60)
        token = ours.recv()
        os.kill(paused, signal.SIGSTOP)
        with connect(store) as client, client.lock("thing", wait="60s") as lease:
            assert lease.token > token
            thing.write(lease, "newer")
            thing.write_unguarded("newer")
            os.kill(paused, signal.SIGCONT)
            ours.send("go on")
            assert ours.poll(60)
            assert ours.recv() == (token, lease.token)
            thing.write(lease, "newest")
    finally:
        os.kill(paused, signal.SIGKILL)
        os.waitpid(paused, 0)
    assert thing.read() == ("newest", "late"), "without the guard the late write stands"


SERVER = "redis://localhost:6379/0"


@pytest.mark.multiprocess
def test_the_examples_of_the_page_work(redis_url: str, tmp_path: Path) -> None:
    examples = blocks("fencing.md")
    assert [SERVER in code for code in examples] == [False, True, False]
    told = run("\n".join(examples).replace(SERVER, redis_url), tmp_path).splitlines()
    for line, name in zip(told, ["order:42", "cart:42", "report"], strict=True):
        assert re.match(rf"token \d+ of lock {name} is stale: the resource has already seen", line)
