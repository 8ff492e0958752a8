"""Records on servers that restart, stop answering, fail over, or give only some rights."""

import asyncio
import sqlite3
import stat
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest
import redis

import dibs.sync
from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.server.records import postgres as postgres_module
from dibs.server.records import records_for
from dibs.server.records.port import Conflict, Record, Records
from dibs.server.records.redis import STATE
from dibs.stores.redis.errors import RIGHTS
from tests.server.world import World
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_sentinel import RedisSentinel
from tests.servers.waiting import wait_until

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


@pytest.mark.parametrize(
    ("url", "why"),
    [
        *((url, 'records = "sqlite:') for url in ("https://server", "nonsense", "")),
        (f"x://:{SECRET}@host", 'records = "sqlite:'),
        *((f"{each}://a:{SECRET}@h", "cannot keep its records") for each in ("temporal", "nats")),
        *((url, "cannot keep its records") for url in ("etcd://host", "kubernetes://", "s3://b")),
        *((url, None) for url in ("redis://host/?cluster=maybe", "sqlite://x")),
        *((url, None) for url in ("postgresql://h/?x=1", "POSTGRES://h/?x=1")),
    ],
)
def test_a_url_that_cannot_keep_records(url: str, why: str | None) -> None:
    with pytest.raises(NotConfigured, match=why) as caught:
        records_for(url)
    assert SECRET not in str(caught.value)
    assert "memory" not in str(caught.value)


async def test_records_lie_in_the_file_of_the_leases(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    async with at(url) as records, dibs.connect(url) as client:
        await records.put("key", "a", b"before", 0)
        async with client.lock("x"):
            await records.put("key", "a", b"after", 1)
            assert [status.name async for status in client.list()] == [b"x"]
        assert await records.get("key", "a") == Record("key", "a", b"after", 2)
    assert stat.S_IMODE((tmp_path / "leases.db").stat().st_mode) == 0o600


async def test_a_busy_file_is_waited_for_as_long_as_its_timeout(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    async with at(f"{url}?timeout=30") as patient, at(f"{url}?timeout=0.05") as hasty:
        await patient.put("key", "a", b"kept", 0)
        with closing(sqlite3.connect(tmp_path / "records.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            putting = asyncio.create_task(patient.put("key", "a", b"new", 1))
            with pytest.raises(BackendUnavailable, match="locked"):
                await hasty.put("key", "a", b"", 1)
            assert await hasty.revision() == 1, "reads do not wait"
            assert not putting.done()
            other.execute("COMMIT")
        assert (await putting).version == 2


async def test_a_restored_backup_is_read(tmp_path: Path) -> None:
    path, backup = tmp_path / "records.db", tmp_path / "backup.db"
    async with at(f"sqlite:///{backup}") as records:
        await records.put("key", "a", b"from the backup", 0)
    async with at(f"sqlite:///{path}") as records:
        await records.put("key", "a", b"", 0)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        backup.rename(path)
        assert await records.get("key", "a") == Record("key", "a", b"from the backup", 1)


@pytest.mark.once
def test_a_redis_that_forgets_is_reported_before_and_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
async def test_a_redis_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with at(f"{server.url}?socket_timeout=100ms&socket_connect_timeout=100ms") as records:
            await records.put("key", "a", b"kept", 0)
            server.pause()
            with pytest.raises(BackendUnavailable, match="in time"):
                await records.get("key", "a")
            server.resume()
            found = await until_it_works(lambda: records.get("key", "a"))
            assert found == Record("key", "a", b"kept", 1)


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
async def test_a_failover(tmp_path: Path) -> None:
    sentinel = RedisSentinel(tmp_path)
    with sentinel:
        hosts = ",".join(f"{host}:{port}" for host, port in sentinel.addresses)
        async with at(f"redis://{hosts}/0?sentinel={sentinel.service}") as records:
            await records.put("key", "a", b"kept", 0)
            with sentinel.servers[0].client() as client:
                client.wait(1, 30_000)
            sentinel.servers[0].kill()
            found = await until_it_works(lambda: records.get("key", "a"))
            assert found == Record("key", "a", b"kept", 1)
            made = await until_it_works(lambda: records.put("key", "b", b"", 0))
            assert made.version == 1


@pytest.mark.once
async def test_a_node_of_a_cluster_is_named_as_one(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        here = cluster.node_of(STATE)
        for node in cluster.nodes:
            async with at(node.url) as alone, at(f"{node.url}?cluster=true") as records:
                assert await records.revision() == 0
                if node is not here:
                    with pytest.raises(NotConfigured, match=r"\?cluster=true"):
                        await alone.open()


async def test_a_row_that_another_transaction_locks_is_given_up_in_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "TIMEOUT", 0.3)
    async with at(postgres_url) as records:
        await records.put("key", "a", b"kept", 0)
        with psycopg.connect(postgres_url) as other:
            other.execute("UPDATE dibs.service_records SET value = 'theirs', version = 2")
            with pytest.raises(BackendUnavailable, match="did not answer"):
                await records.put("key", "a", b"ours", 1)
            other.commit()
        monkeypatch.undo()
        assert await records.get("key", "a") == Record("key", "a", b"theirs", 2)
        with pytest.raises(Conflict):
            await records.put("key", "a", b"ours", 1)


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """The URL of a role that may connect, and nothing more."""
    name = f"r_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield postgres_url.replace("dibs@", f"{name}@")
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"DROP OWNED BY {name}".encode())
        db.execute(f"DROP ROLE {name}".encode())


async def test_a_role_that_may_make_no_tables(postgres_url: str, role: str) -> None:
    async with at(role) as records:
        with pytest.raises(Forbidden, match=r"keys list --records"):
            await records.open()
    async with at(postgres_url) as records:
        await records.open()
    async with at(role) as records:
        with pytest.raises(Forbidden):
            await records.revision()
    name = role.partition("//")[2].partition("@")[0]
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"GRANT USAGE ON SCHEMA dibs TO {name}".encode())
        for table in ("records", "log", "state"):
            rights = f"GRANT SELECT, INSERT, UPDATE, DELETE ON dibs.service_{table} TO {name}"
            db.execute(rights.encode())
    async with at(role) as records:
        await records.put("key", "a", b"", 0)
        await records.append(b"line")
        await records.delete("key", "a", 1)


async def test_behind_a_transaction_pooler(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with PgBouncer(tmp_path, postgres_server, pool_size=2) as pooler:
        async with (
            at(pooler.url_of(postgres_url)) as first,
            at(pooler.url_of(postgres_url)) as second,
        ):
            for each in range(8):
                await first.put("key", f"{each}", b"", 0)
                assert len(await second.all("key")) == each + 1


# -- alike on several servers -----------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("store", ["redis", "postgres"])
async def test_a_server_that_restarts(tmp_path: Path, store: str) -> None:
    server: RedisServer | PostgresServer = PostgresServer(tmp_path)
    if store == "redis":
        server = RedisServer(tmp_path, persistence="always")
    with server:
        async with at(server.url) as records:
            kept = await records.put("key", "a", b"kept", 0)
            await asyncio.to_thread(server.restart)
            assert await records.get("key", "a") == kept
            await asyncio.to_thread(server.kill)
            with pytest.raises(BackendUnavailable):
                await records.revision()
            await asyncio.to_thread(server.start)
            assert await records.revision() == 1


@pytest.mark.parametrize("store", ["redis", "postgres"])
async def test_a_connection_that_is_cut(request: pytest.FixtureRequest, store: str) -> None:
    """Before the loop can notice: to read is tried again; whether a write was done is unknown."""
    url: str = request.getfixturevalue(f"{store}_url")

    def cut() -> None:
        if store == "redis":
            with redis.Redis.from_url(url) as client:
                client.client_kill_filter(_type="normal", skipme=True)
            return
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    async with at(url) as records:
        kept = await records.put("key", "a", b"kept", 0)
        cut()
        assert await records.get("key", "a") == kept
        cut()
        assert await records.revision() == 1
        cut()
        with pytest.raises(BackendUnavailable):
            await records.put("key", "a", b"new", 1)
        found = await records.get("key", "a")
        assert found is not None
        again = await records.put("key", "a", b"newer", found.version)
        assert again.version == found.version + 1


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_the_log_is_only_added_to(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    path = tmp_path / "records.db"
    url = f"sqlite:///{path}" if store == "sqlite" else request.getfixturevalue("postgres_url")
    async with at(url) as records:
        await records.append(b"line")
    if store == "sqlite":
        with closing(sqlite3.connect(path)) as file:
            with pytest.raises(sqlite3.IntegrityError, match="only added to"):
                file.execute("UPDATE dibs_log SET value = ''")
        return
    with psycopg.connect(url, autocommit=True) as db:
        for statement in (b"UPDATE dibs.service_log SET value = ''", b"TRUNCATE dibs.service_log"):
            with pytest.raises(psycopg.errors.RaiseException, match="only added to"):
                db.execute(statement)
