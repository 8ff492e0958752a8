"""Records, wherever they lie: one suite over every place, and servers that restart, hang or refuse."""

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest
import redis

import dibs.sync
from dibs.errors import BackendUnavailable, Corrupt, Forbidden, IncompatibleVersion, NotConfigured
from dibs.server.records import records_for
from dibs.server.records.port import MAX_VALUE, Conflict, LogEntry, Record, Records
from dibs.server.records.redis import STATE
from dibs.stores.redis.errors import RIGHTS
from tests.server.world import World
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster
from tests.servers.waiting import wait_until

PLACES = ("memory", "sqlite", "redis", "postgres")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return f"memory://{tmp_path.name}"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'records.db'}"
        case store:
            return str(request.getfixturevalue(f"{store}_url"))


def spoil(url: str, text: str) -> None:
    """Have another format there, which may be none."""
    match url.partition(":")[0]:
        case "sqlite":
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
                db.execute("UPDATE dibs_service SET format = ?", (text,))
        case "redis":
            with redis.Redis.from_url(url) as client:
                client.hset(STATE.decode(), "format", text)
        case _:
            with psycopg.connect(url, autocommit=True) as server:
                if text.isdigit():
                    server.execute("UPDATE dibs.service_state SET format = %s", (int(text),))
                else:
                    server.execute("DELETE FROM dibs.service_state")


@pytest.fixture
async def servers(place: str) -> AsyncIterator[list[Records]]:
    """The records of five servers of one service, which start at once."""
    servers = [records_for(place) for _ in range(5)]
    await asyncio.gather(*(server.open() for server in servers))
    yield servers
    for server in servers:
        await server.close()


@pytest.fixture
def records(servers: list[Records]) -> Records:
    return servers[0]


async def test_a_document_changes_from_the_version_that_is_known(records: Records) -> None:
    assert await records.get("key", "a") is None
    assert await records.put("key", "a", b"one", 0) == Record("key", "a", b"one", 1)
    assert await records.put("key", "a", b"two", 1) == Record("key", "a", b"two", 2)
    for name, versions in (("a", (0, 1, 3, 7)), ("nothing", (1,))):
        for version in versions:
            with pytest.raises(Conflict):
                await records.put("key", name, b"new", version)
            with pytest.raises(Conflict):
                await records.delete("key", name, version)
    with pytest.raises(Conflict):
        await records.delete("key", "nothing", 0)
    assert await records.get("key", "a") == Record("key", "a", b"two", 2)
    await records.delete("key", "a", 2)
    assert await records.get("key", "a") is None
    assert await records.put("key", "a", b"again", 0) == Record("key", "a", b"again", 1)


async def test_names_and_values_are_any_bytes(records: Records) -> None:
    names = [*"baäZ%'", "a/b", "a b", "\N{ROCKET}", "\uffff", '"', "x" * 2048]
    for name in names:
        await records.put("key", name, name.encode(), 0)
    await records.put("key-two", "other", b"", 0)
    wanted = [Record("key", name, name.encode(), 1) for name in sorted(names)]
    assert await records.all("key") == wanted
    assert await records.all("nothing") == []
    values = (b"", b"\0", b"1:2:3", bytes(range(256)), b"x" * MAX_VALUE)
    for version, value in enumerate(values):
        await records.put("key", "n", value, version)
        number = await records.append(value)
        assert await records.get("key", "n") == Record("key", "n", value, version + 1)
        assert [(e.number, e.value) for e in await records.log(None, 1)] == [(number, value)]


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


async def test_no_change_is_lost_or_seen_before_it_can_be_read(servers: list[Records]) -> None:
    """A revision that was seen is never of a change that can't be read yet."""
    *writers, reader = servers

    async def count(server: Records, times: int) -> None:
        while times:
            found = await server.get("counter", "a")
            value, version = (int(found.value), found.version) if found else (0, 0)
            try:
                await server.put("counter", "a", b"%d" % (value + 1), version)
                times -= 1
            except Conflict:
                pass

    counting = asyncio.gather(*(count(writer, 10) for writer in writers))
    while not counting.done():
        revision = await reader.revision()
        found = await reader.get("counter", "a")
        assert (found.version if found else 0) >= revision
        await asyncio.sleep(0)
    await counting
    assert await reader.get("counter", "a") == Record("counter", "a", b"40", 40)
    assert await reader.revision() == 40


async def test_the_log_is_read_by_pages_and_forgotten_from_its_end(servers: list[Records]) -> None:
    lines = [b"%d" % each for each in range(40)]
    tries = (servers[each % 5].append(line) for each, line in enumerate(lines))
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
    oldest = await servers[0].oldest(30)
    assert [(each.number, each.value) for each in oldest] == [(n, written[n]) for n in numbers[:30]]
    await servers[1].forget(oldest)
    await servers[0].forget(oldest)  # as another server did at the same time
    await servers[0].forget([])
    assert [each.number for each in await servers[0].log(None, 100)] == numbers[:29:-1]
    assert await servers[0].append(b"later") > numbers[-1]


async def test_a_call_that_is_cancelled_disturbs_no_other(records: Records) -> None:
    kept = await records.put("key", "a", b"kept", 0)
    calls = [asyncio.create_task(records.get("key", "a")) for _ in range(8)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert [call.result() for call in calls[1::2]] == [kept] * 4
    assert await records.get("key", "a") == kept


@pytest.mark.parametrize("place", PLACES[1:], indirect=True)
async def test_what_no_release_of_ours_wrote_is_refused(place: str, records: Records) -> None:
    await records.put("key", "a", b"", 0)
    for text, kind, why in (
        ("99", IncompatibleVersion, "99"),
        ("x", Corrupt, "no API key is accepted"),
    ):
        spoil(place, text)
        async with at(place) as later:
            for read in (records.revision, later.open):
                with pytest.raises(kind, match=why):
                    await read()


# -- servers that restart, hang, or give only some rights -------------------------------------------

SECRET = "hunter2"


@asynccontextmanager
async def at(url: str) -> AsyncIterator[Records]:
    records = records_for(url)
    try:
        yield records
    finally:
        await records.close()


async def until_it_works[R](call: Callable[[], Awaitable[R]]) -> R:
    """Once a server is back, or another has taken over."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except BackendUnavailable:
                await asyncio.sleep(0.05)


def test_a_url_that_cannot_keep_records() -> None:
    elsewhere = "cannot keep its records"
    for url, why in (
        *((url, 'records = "sqlite:') for url in ("https://server", "", f"x://:{SECRET}@host")),
        *((url, elsewhere) for url in (f"temporal://a:{SECRET}@h", f"nats://a:{SECRET}@h")),
        *((url, elsewhere) for url in ("etcd://host", "kubernetes://", "s3://b")),
        *((url, None) for url in ("redis://host/?cluster=maybe", "sqlite://x")),
        ("postgresql://h/?x=1", None),
    ):
        with pytest.raises(NotConfigured, match=why) as caught:
            records_for(url)
        assert SECRET not in str(caught.value)


async def test_records_lie_in_the_file_of_the_leases(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    async with at(url) as records, dibs.connect(url) as client:
        await records.put("key", "a", b"before", 0)
        async with client.lock("x"):
            await records.put("key", "a", b"after", 1)
            assert [status.name async for status in client.list()] == [b"x"]
        assert await records.get("key", "a") == Record("key", "a", b"after", 2)
    assert stat.S_IMODE((tmp_path / "leases.db").stat().st_mode) == 0o600


@pytest.mark.once
def test_a_redis_that_forgets_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path, extra=["maxmemory 64mb", "maxmemory-policy allkeys-lru"]) as server:
        store = f"memory://{tmp_path.name}"
        with World.over(leases=store, records=server.url):
            told = [each.getMessage() for each in caplog.records]
            assert any("appendonly yes" in each and "loses all API keys" in each for each in told)
            assert any("allkeys-lru" in each for each in told)
            assert not any("gone from the records" in each for each in told)
            server.restart()
            gone = "all keys are gone from the records"
            wait_until(lambda: gone in caplog.text, "it is reported")


@pytest.mark.once
async def test_the_rights_that_leases_need_and_three_more_are_enough(tmp_path: Path) -> None:
    rights = RIGHTS.replace("NAME", "app") + " +eval +hget +hgetall"
    users = [f"app on >{SECRET} -@all {rights}", "default off"]
    with RedisServer(tmp_path, users=users) as server:
        place = server.url.partition("//")[2]
        async with at(f"redis://app:{SECRET}@{place}") as records:
            await records.warnings()  # as far as it may ask
            await records.put("key", "a", b"", 0)
            await records.append(b"line")
            assert len(await records.log(None, 1)) == len(await records.all("key")) == 1
            await records.delete("key", "a", 1)
        async with at(f"redis://app:wrong{SECRET}@{place}") as records:
            with pytest.raises(Forbidden) as caught:
                await records.open()
        assert SECRET not in str(caught.value)


@pytest.mark.once
@pytest.mark.parametrize("store", ["redis", "postgres"])
async def test_a_server_that_restarts_or_hangs(tmp_path: Path, store: str) -> None:
    """Reads are tried again on another connection; whether a write was done is unknown."""
    server: RedisServer | PostgresServer = PostgresServer(tmp_path)
    if store == "redis":
        server = RedisServer(tmp_path, persistence="always")
    with server:
        hasty = "?socket_timeout=100ms&socket_connect_timeout=100ms" if store == "redis" else ""
        urls = server.url, f"{server.url}{hasty}"
        async with at(urls[0]) as records, at(urls[0]) as other, at(urls[1]) as late:
            kept = await records.put("key", "a", b"kept", 0)
            assert await other.get("key", "a") == kept
            server.restart()  # the loop cannot notice that its connections have ended
            calls = records.put("key", "a", b"new", 1), other.get("key", "a")
            lost, found = await asyncio.gather(*calls, return_exceptions=True)
            assert (type(lost), found) == (BackendUnavailable, kept)
            server.kill()
            with pytest.raises(BackendUnavailable):
                await records.revision()
            server.start()
            version = await records.revision()  # that of the lost change, if it was done
            again = await records.put("key", "a", b"newer", version)
            if store == "redis":
                server.pause()
                with pytest.raises(BackendUnavailable, match="in time"):
                    await late.get("key", "a")
                server.resume()
                assert await until_it_works(lambda: late.get("key", "a")) == again


@pytest.mark.long
async def test_a_node_of_a_cluster_is_named_as_one(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        here = cluster.node_of(STATE)
        for version, node in enumerate(cluster.nodes):
            async with at(node.url) as alone, at(f"{node.url}?cluster=true") as records:
                assert (await records.put("key", "a", b"", version)).version == version + 1
                if node is not here:
                    with pytest.raises(NotConfigured, match=r"\?cluster=true"):
                        await alone.open()
