"""Records, wherever they lie: one suite over every place, on real servers."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from dibs.errors import BackendUnavailable, Corrupt, DibsError, IncompatibleVersion
from dibs.server.records import records_for
from dibs.server.records.port import (
    MAX_NAME,
    MAX_PAGE,
    MAX_VALUE,
    Conflict,
    LogEntry,
    Record,
    Records,
)
from tests.servers.redis_cluster import RedisCluster

SQLITE_SPOILT = {
    "format": "UPDATE dibs_service SET format = 'x'",
    "newer": "UPDATE dibs_service SET format = 99",
    "value": "UPDATE dibs_records SET version = 'x', value = 17",
    "gone": "DROP TABLE dibs_records",
}
POSTGRES_SPOILT = {
    "format": "DELETE FROM dibs.service_state",
    "newer": "UPDATE dibs.service_state SET format = 99",
    "value": "ALTER TABLE dibs.service_records ALTER value TYPE text USING 'x'",
    "gone": "DROP TABLE dibs.service_records",
}


@dataclass
class Place:
    """Where a service's records lie; each `records()` is another server's."""

    url: str
    spoil: Callable[[str], None] = field(default=lambda _: None)
    """Have something there that we never wrote: `format`, `newer`, `value` or `gone`."""

    def records(self) -> Records:
        return records_for(self.url)


def sqlite_place(folder: Path) -> Place:
    path = folder / "records.db"

    def spoil(what: str) -> None:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(SQLITE_SPOILT[what])

    return Place(f"sqlite:///{path}", spoil)


def redis_place(url: str, client: Callable[[], Any]) -> Place:
    state, keys = b"dibs:service:{dibs}:state", b"dibs:service:{dibs}:records:key"

    def spoil(what: str) -> None:
        with client() as db:
            match what:
                case "format":
                    db.hset(state, "format", "x")
                case "newer":
                    db.hset(state, "format", 99)
                case "value":
                    db.hset(keys, "a", "no version")
                case _:
                    db.delete(keys)
                    db.set(keys, "no hash")

    return Place(url, spoil)


def postgres_place(url: str) -> Place:
    def spoil(what: str) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(POSTGRES_SPOILT[what].encode())

    return Place(url, spoil)


PLACES = (
    "memory",
    "sqlite",
    "redis",
    pytest.param("cluster", marks=pytest.mark.once),
    "postgres",
)
REAL = PLACES[1:]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "memory":
            return Place(f"memory://{tmp_path.name}")
        case "sqlite":
            return sqlite_place(tmp_path)
        case "redis":
            url: str = request.getfixturevalue("redis_url")
            return redis_place(url, partial(redis.Redis.from_url, url))
        case "cluster":
            cluster: RedisCluster = request.getfixturevalue("cluster")
            with cluster.client() as client:
                client.flushall()
            return redis_place(f"{cluster.url}?cluster=true", cluster.client)
        case _:
            return postgres_place(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def opened(place: Place) -> AsyncIterator[Callable[[], Records]]:
    """Makes another server's records at the same place; all are closed at the end."""
    made: list[Records] = []

    def make() -> Records:
        made.append(place.records())
        return made[-1]

    yield make
    for records in made:
        await records.close()


@pytest.fixture
async def records(opened: Callable[[], Records]) -> Records:
    records = opened()
    await records.open()
    return records


async def test_a_document_is_made_changed_and_removed(records: Records) -> None:
    assert await records.get("key", "a") is None
    assert await records.put("key", "a", b"one", 0) == Record("key", "a", b"one", 1)
    assert await records.put("key", "a", b"two", 1) == Record("key", "a", b"two", 2)
    assert await records.get("key", "a") == Record("key", "a", b"two", 2)
    await records.delete("key", "a", 2)
    assert await records.get("key", "a") is None
    assert await records.put("key", "a", b"again", 0) == Record("key", "a", b"again", 1)


async def test_a_document_of_another_version_is_neither_changed_nor_removed(
    records: Records,
) -> None:
    for version in (0, 1):
        await records.put("key", "a", b"kept", version)
    for name, versions in (("a", (0, 1, 3, 7)), ("nothing", (1,))):
        for version in versions:
            with pytest.raises(Conflict):
                await records.put("key", name, b"new", version)
            with pytest.raises(Conflict):
                await records.delete("key", name, version)
    with pytest.raises(Conflict):
        await records.delete("key", "nothing", 0)
    assert await records.all("key") == [Record("key", "a", b"kept", 2)]


async def test_all_of_a_kind_by_name(records: Records) -> None:
    names = [*"baäZ%'", "a/b", "a b", "\N{ROCKET}", "\uffff", '"', "x" * MAX_NAME]
    for name in names:
        await records.put("key", name, name.encode(), 0)
    await records.put("key-two", "other", b"", 0)
    wanted = [Record("key", name, name.encode(), 1) for name in sorted(names)]
    assert await records.all("key") == wanted
    assert await records.all("nothing") == []


async def test_a_value_is_any_bytes(records: Records) -> None:
    values = (b"", b"\0", b"1:2:3", bytes(range(256)), b"x" * MAX_VALUE)
    for version, value in enumerate(values):
        await records.put("key", "a", value, version)
        number = await records.append(value)
        assert await records.get("key", "a") == Record("key", "a", value, version + 1)
        assert [(e.number, e.value) for e in await records.log(None, 1)] == [(number, value)]


async def test_names_values_and_pages_that_are_wrong(records: Records) -> None:
    bad = [("", "a"), ("Key", "a"), ("k:", "a"), ("key", ""), ("key", "x" * (MAX_NAME + 1))]
    for kind, name in [*bad, ("key", "a\0b"), ("key", "\ud800")]:
        with pytest.raises(ValueError, match="record"):
            await records.get(kind, name)
        with pytest.raises(ValueError, match="record"):
            await records.put(kind, name, b"", 0)
        with pytest.raises(ValueError, match="record"):
            await records.delete(kind, name, 0)
    with pytest.raises(ValueError, match="bytes"):
        await records.put("key", "a", b"x" * (MAX_VALUE + 1), 0)
    with pytest.raises(ValueError, match="bytes"):
        await records.append(b"x" * (MAX_VALUE + 1))
    for before, limit in ((None, 0), (None, MAX_PAGE + 1), (-1, 1), (1 << 60, 1)):
        with pytest.raises(ValueError, match="page"):
            await records.log(before, limit)


async def test_the_revision_rises_with_each_change_and_with_nothing_else(records: Records) -> None:
    seen = [await records.revision()]
    for step in (
        records.put("key", "a", b"1", 0),
        records.put("key", "a", b"1", 1),
        records.put("other", "a", b"", 0),
        records.delete("key", "a", 2),
    ):
        await step
        seen.append(await records.revision())
    assert seen == sorted(set(seen))
    await records.append(b"line")
    for change in (records.put("other", "a", b"", 0), records.delete("key", "a", 0)):
        with pytest.raises(Conflict):
            await change
    assert await records.revision() == seen[-1]


async def test_changes_can_be_read_once_their_revision_is_seen(
    opened: Callable[[], Records],
) -> None:
    """A revision that was seen is never of a change that can't be read yet."""
    writers, reader = [opened() for _ in range(3)], opened()
    await reader.open()

    async def write(server: Records, who: int) -> None:
        for number in range(8):
            await server.put("key", f"{who}-{number}", b"", 0)

    writing = asyncio.gather(*(write(server, who) for who, server in enumerate(writers)))
    while not writing.done():
        revision = await reader.revision()
        assert len(await reader.all("key")) >= revision
        await asyncio.sleep(0)
    await writing
    assert len(await reader.all("key")) == await reader.revision() == 24


async def test_of_writers_at_several_servers_none_loses_a_change(
    opened: Callable[[], Records],
) -> None:
    async def count(server: Records, times: int) -> None:
        while times:
            found = await server.get("counter", "a")
            value, version = (int(found.value), found.version) if found else (0, 0)
            try:
                await server.put("counter", "a", b"%d" % (value + 1), version)
                times -= 1
            except Conflict:
                pass

    servers = [opened() for _ in range(4)]
    await asyncio.gather(*(count(server, 10) for server in servers))
    assert await servers[0].get("counter", "a") == Record("counter", "a", b"40", 40)
    assert await servers[1].revision() == 40


async def test_the_log_of_several_servers_is_read_by_pages_newest_first(
    opened: Callable[[], Records],
) -> None:
    servers = [opened() for _ in range(4)]
    lines = [b"%d" % each for each in range(40)]
    tries = (servers[each % 4].append(line) for each, line in enumerate(lines))
    written = dict(zip(await asyncio.gather(*tries), lines, strict=True))
    numbers, before, read = sorted(written), None, list[LogEntry]()
    while page := await servers[0].log(before, 7):
        assert len(page) <= 7
        read += page
        before = page[-1].number
    assert [entry.number for entry in read] == numbers[::-1]
    assert {entry.number: entry.value for entry in read} == written
    assert await servers[0].log(numbers[0], 5) == []
    assert [entry.number for entry in await servers[0].log(numbers[-1] + 100, 1)] == numbers[-1:]


async def test_the_oldest_lines_are_forgotten(opened: Callable[[], Records]) -> None:
    one, other = opened(), opened()
    numbers = [await (one, other)[each % 2].append(b"%d" % each) for each in range(7)]
    oldest = await one.oldest(3)
    wanted = [(number, b"%d" % each) for each, number in enumerate(numbers[:3])]
    assert [(each.number, each.value) for each in oldest] == wanted
    await other.forget(oldest)
    await one.forget(oldest)  # as another server did at the same time
    await one.forget([])
    assert [each.number for each in await one.log(None, 100)] == numbers[:2:-1]
    assert [each.number for each in await one.log(numbers[4], 100)] == [numbers[3]]
    assert await one.append(b"later") > numbers[-1]


async def test_a_call_that_is_cancelled_disturbs_no_other(records: Records) -> None:
    kept = await records.put("key", "a", b"kept", 0)
    calls = [asyncio.create_task(records.get("key", "a")) for _ in range(8)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert [call.result() for call in calls[1::2]] == [kept] * 4
    assert await records.get("key", "a") == kept


@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_servers_that_start_at_once_make_one_place_that_outlives_them(
    opened: Callable[[], Records],
) -> None:
    servers = [opened() for _ in range(6)]
    await asyncio.gather(*(server.open() for server in servers))
    await servers[0].put("key", "a", b"kept", 0)
    await servers[0].append(b"line")
    assert [await server.revision() for server in servers] == [1] * 6
    for server in servers:
        await server.close()
    later = opened()
    assert await later.get("key", "a") == Record("key", "a", b"kept", 1)
    assert [entry.value for entry in await later.log(None, 10)] == [b"line"]


@pytest.mark.parametrize(
    ("what", "kind", "why"),
    [
        ("newer", IncompatibleVersion, "99"),
        ("format", Corrupt, "no API key is accepted"),
        ("value", (Corrupt, BackendUnavailable), None),
        ("gone", (Corrupt, BackendUnavailable), None),
    ],
)
@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_what_no_release_of_ours_wrote_is_refused(
    place: Place,
    records: Records,
    opened: Callable[[], Records],
    what: str,
    kind: type[DibsError],
    why: str | None,
) -> None:
    await records.put("key", "a", b"", 0)
    place.spoil(what)
    reads: tuple[Callable[[], Awaitable[object]], ...] = (records.revision, opened().open)
    if what in ("value", "gone"):
        reads = (partial(records.get, "key", "a"), partial(records.all, "key"))
    for read in reads:
        with pytest.raises(kind, match=why):
            await read()
