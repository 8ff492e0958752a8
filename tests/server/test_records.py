"""Records, wherever they lie: one suite over every place, on real servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import redis

from dibs.errors import BackendUnavailable, Corrupt, DibsError, IncompatibleVersion
from dibs.server.records.port import (
    MAX_NAME,
    MAX_PAGE,
    MAX_VALUE,
    Conflict,
    LogEntry,
    Record,
    Records,
)
from tests.server.records_places import (
    Place,
    postgres_place,
    redis_place,
    sqlite_place,
)
from tests.servers.redis_cluster import RedisCluster

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
    with ExitStack() as stack:
        cluster = RedisCluster(tmp_path_factory.mktemp("cluster")).start()
        stack.callback(cluster.stop)
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


@pytest.mark.parametrize("expected", [1, 3, 7])
async def test_a_document_of_another_version_is_left_alone(records: Records, expected: int) -> None:
    for version in (0, 1):
        await records.put("key", "a", b"kept", version)
    for change in (records.put("key", "a", b"new", expected), records.delete("key", "a", expected)):
        with pytest.raises(Conflict):
            await change
    assert await records.get("key", "a") == Record("key", "a", b"kept", 2)


async def test_a_document_that_is_there_is_not_made(records: Records) -> None:
    await records.put("key", "a", b"kept", 0)
    for change in (records.put("key", "a", b"new", 0), records.delete("key", "a", 0)):
        with pytest.raises(Conflict):
            await change


async def test_a_document_that_is_not_there_is_neither_changed_nor_removed(
    records: Records,
) -> None:
    for change in (
        records.put("key", "a", b"new", 1),
        records.delete("key", "a", 1),
        records.delete("key", "a", 0),
    ):
        with pytest.raises(Conflict):
            await change
    assert await records.get("key", "a") is None


async def test_all_of_a_kind_are_told_by_name(records: Records) -> None:
    names = [
        "b",
        "a",
        "ä",
        "Z",
        "a/b",
        "a b",
        "\N{ROCKET}",
        "\uffff",
        "%",
        "'",
        '"',
        "x" * MAX_NAME,
    ]
    for name in names:
        await records.put("key", name, name.encode(), 0)
    await records.put("key-two", "other", b"", 0)
    found = await records.all("key")
    assert [record.name for record in found] == sorted(names)
    assert all(record.value == record.name.encode() and record.version == 1 for record in found)
    assert await records.all("nothing") == []


@pytest.mark.parametrize(
    "value", [b"", b"\0", b"1:2:3", bytes(range(256)), b"x" * MAX_VALUE], ids=len
)
async def test_a_value_is_any_bytes(records: Records, value: bytes) -> None:
    await records.put("key", "a", value, 0)
    number = await records.append(value)
    assert await records.get("key", "a") == Record("key", "a", value, 1)
    assert [(e.number, e.value) for e in await records.log(None, 1)] == [(number, value)]


async def test_what_no_document_can_be_is_refused(records: Records) -> None:
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


async def test_the_revision_rises_with_every_change_and_with_nothing_else(records: Records) -> None:
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


async def test_of_many_writers_exactly_one_wins(opened: Callable[[], Records]) -> None:
    servers = [opened() for _ in range(4)]

    async def write(server: Records, who: int, expected: int) -> int | None:
        try:
            return (await server.put("key", "a", b"%d" % who, expected)).version and who
        except Conflict:
            return None

    for expected in range(3):
        tries = [write(server, who, expected) for who, server in enumerate(servers * 2)]
        winners = [who for who in await asyncio.gather(*tries) if who is not None]
        assert len(winners) == 1
        found = await servers[0].get("key", "a")
        assert found == Record("key", "a", b"%d" % winners[0], expected + 1)


async def test_a_counter_that_many_servers_raise_loses_nothing(
    opened: Callable[[], Records],
) -> None:
    async def raise_it(server: Records, times: int) -> None:
        while times:
            found = await server.get("counter", "a")
            value, version = (int(found.value), found.version) if found else (0, 0)
            try:
                await server.put("counter", "a", b"%d" % (value + 1), version)
                times -= 1
            except Conflict:
                pass

    servers = [opened() for _ in range(4)]
    await asyncio.gather(*(raise_it(server, 10) for server in servers))
    found = await servers[0].get("counter", "a")
    assert found is not None
    assert (int(found.value), found.version) == (40, 40)
    assert await servers[1].revision() == 40


async def test_whoever_reads_after_a_revision_has_its_changes(
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


async def test_the_log_is_read_by_pages_newest_first(opened: Callable[[], Records]) -> None:
    servers = [opened(), opened()]
    numbers = [await servers[each % 2].append(b"%d" % each) for each in range(7)]
    assert numbers == sorted(set(numbers))
    read: list[LogEntry] = []
    before = None
    while page := await servers[0].log(before, 3):
        assert len(page) <= 3
        read += page
        before = page[-1].number
    assert [entry.value for entry in read] == [b"%d" % each for each in reversed(range(7))]
    assert [entry.number for entry in read] == numbers[::-1]
    assert await servers[0].log(numbers[0], 5) == []
    assert [entry.number for entry in await servers[0].log(numbers[-1] + 100, 1)] == numbers[-1:]


async def test_the_oldest_lines_are_forgotten(opened: Callable[[], Records]) -> None:
    servers = [opened(), opened()]
    numbers = [await servers[each % 2].append(b"%d" % each) for each in range(7)]
    oldest = await servers[0].oldest(3)
    assert [(each.number, each.value) for each in oldest] == [
        (number, b"%d" % each) for each, number in enumerate(numbers[:3])
    ]
    await servers[1].forget(oldest)
    await servers[0].forget(oldest)  # as another server did at the same time
    await servers[0].forget([])
    assert [each.number for each in await servers[0].log(None, 100)] == numbers[:2:-1]
    assert [each.number for each in await servers[0].log(numbers[4], 100)] == [numbers[3]]
    assert await servers[0].append(b"later") > numbers[-1]


async def test_lines_of_many_servers_all_stay(opened: Callable[[], Records]) -> None:
    servers = [opened() for _ in range(4)]
    lines = [b"%d" % each for each in range(40)]
    numbers = await asyncio.gather(
        *(servers[each % 4].append(line) for each, line in enumerate(lines))
    )
    assert len(set(numbers)) == 40
    found = await servers[0].log(None, 100)
    assert {entry.number: entry.value for entry in found} == dict(zip(numbers, lines, strict=True))
    assert [entry.number for entry in found] == sorted(numbers, reverse=True)


async def test_it_may_be_opened_twice_and_used_after_it_was_closed(records: Records) -> None:
    await records.open()
    await records.put("key", "a", b"", 0)
    await records.close()
    await records.close()
    assert await records.revision() in (0, 1)  # memory's records may end with those who use them


@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_it_stays_when_everybody_has_left(opened: Callable[[], Records]) -> None:
    first, second = opened(), opened()
    await first.put("key", "a", b"kept", 0)
    await first.append(b"line")
    await first.close()
    assert await second.get("key", "a") == Record("key", "a", b"kept", 1)
    assert [entry.value for entry in await second.log(None, 10)] == [b"line"]


@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_servers_that_start_at_once_make_one_place(opened: Callable[[], Records]) -> None:
    servers = [opened() for _ in range(6)]
    await asyncio.gather(*(server.open() for server in servers))
    await servers[0].put("key", "a", b"", 0)
    assert [await server.revision() for server in servers] == [1] * 6


@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_another_format_is_refused(
    place: Place, records: Records, opened: Callable[[], Records]
) -> None:
    await records.put("key", "a", b"", 0)
    place.spoil("newer")
    for server in (records, opened()):
        with pytest.raises(IncompatibleVersion, match="99"):
            await server.revision()
    with pytest.raises(IncompatibleVersion, match="99"):
        await opened().open()


@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_no_format_is_refused(
    place: Place, records: Records, opened: Callable[[], Records]
) -> None:
    await records.put("key", "a", b"", 0)
    place.spoil("format")
    with pytest.raises(Corrupt, match="no API key is accepted"):
        await records.revision()
    with pytest.raises(Corrupt, match="no API key is accepted"):
        await opened().open()


@pytest.mark.parametrize("what", ["value", "gone"])
@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_garbage_is_refused(place: Place, records: Records, what: str) -> None:
    await records.put("key", "a", b"", 0)
    place.spoil(what)
    for read in (records.get("key", "a"), records.all("key")):
        with pytest.raises(DibsError) as caught:
            await read
        assert isinstance(caught.value, Corrupt | BackendUnavailable)


@pytest.mark.parametrize("place", REAL, indirect=True)
async def test_a_call_that_is_cancelled_disturbs_no_other(records: Records) -> None:
    await records.put("key", "a", b"kept", 0)
    calls = [asyncio.create_task(records.get("key", "a")) for _ in range(8)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    for call in calls[1::2]:
        assert call.result() == Record("key", "a", b"kept", 1)
    assert await records.get("key", "a") == Record("key", "a", b"kept", 1)
