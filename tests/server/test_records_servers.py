"""Records on servers that restart, stop answering, fail over, or give only some rights."""

import asyncio
import sqlite3
import stat
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import dibs.sync
from dibs.errors import BackendUnavailable, Corrupt, Forbidden, NotConfigured
from dibs.server.records import postgres as postgres_module
from dibs.server.records import records_for
from dibs.server.records.port import Conflict, Record, Records
from dibs.server.records.redis import STATE, kind_key
from dibs.stores.redis.errors import RIGHTS
from tests.server.world import World
from tests.servers.pgbouncer import PgBouncer
from tests.servers.ports import HOST, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_sentinel import RedisSentinel

SECRET = "hunter2"


@asynccontextmanager
async def at(url: str) -> AsyncIterator[Records]:
    records = records_for(url)
    try:
        yield records
    finally:
        await records.close()


async def until_it_works[R](call: Callable[[], "asyncio.Future[R]"]) -> R:
    """Once a server is back, or another has taken over."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except BackendUnavailable:
                await asyncio.sleep(0.05)


# ---- which URL ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["temporal://host", "https://server", f"x://:{SECRET}@host", "nonsense", ""]
)
def test_where_no_records_can_lie_is_said_with_a_way_out(url: str) -> None:
    with pytest.raises(NotConfigured, match='records = "sqlite:') as caught:
        records_for(url)
    assert SECRET not in str(caught.value)
    assert "memory" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://host/?cluster=maybe", "postgresql://h/?x=1", "sqlite://x", "POSTGRES://h/?x=1"]
)
def test_a_url_that_is_wrong_is_refused_before_anything_is_connected(url: str) -> None:
    with pytest.raises(NotConfigured):
        records_for(url)


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
async def test_nobody_there_is_unavailable(scheme: str) -> None:
    async with at(f"{scheme}://app:{SECRET}@127.0.0.1:{free_port()}/0") as records:
        with pytest.raises(BackendUnavailable) as caught:
            await records.open()
        with pytest.raises(BackendUnavailable):
            await records.put("key", "a", b"", 0)
    assert SECRET not in f"{caught.value} {caught.value.__cause__!r}"


# ---- SQLite ---------------------------------------------------------------------------------------


async def test_records_lie_in_the_file_of_the_leases(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    async with at(url) as records, dibs.connect(url) as client:
        await records.put("key", "a", b"before", 0)
        async with client.lock("x"):
            await records.put("key", "a", b"after", 1)
            assert [status.name async for status in client.list()] == [b"x"]
        assert await records.get("key", "a") == Record("key", "a", b"after", 2)
    assert stat.S_IMODE((tmp_path / "leases.db").stat().st_mode) == 0o600


async def test_a_busy_file_is_waited_for_and_the_loop_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with at(f"sqlite:///{path}?timeout=30") as records:
        await records.open()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            putting = asyncio.create_task(records.put("key", "a", b"", 0))
            await asyncio.sleep(0.05)
            assert not putting.done()
            other.execute("COMMIT")
        assert (await putting).version == 1


async def test_a_file_that_stays_busy_is_told(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with at(f"sqlite:///{path}?timeout=0.05") as records:
        await records.put("key", "a", b"kept", 0)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(BackendUnavailable, match="locked"):
                await records.put("key", "a", b"", 1)
            assert await records.revision() == 1  # to read, nobody waits
            other.execute("COMMIT")
        assert await records.get("key", "a") == Record("key", "a", b"kept", 1)


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


async def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records.db").write_bytes(b"not a database" * 100)
    async with at(f"sqlite:///{tmp_path}/records.db") as records:
        with pytest.raises(Corrupt):
            await records.open()


async def test_the_log_in_a_file_is_only_added_to(tmp_path: Path) -> None:
    async with at(f"sqlite:///{tmp_path}/records.db") as records:
        await records.append(b"line")
    with closing(sqlite3.connect(tmp_path / "records.db")) as db:
        with pytest.raises(sqlite3.IntegrityError, match="only added to"):
            db.execute("UPDATE dibs_log SET value = ''")


# ---- Redis ----------------------------------------------------------------------------------------


@pytest.mark.once
async def test_a_redis_that_restarts(tmp_path: Path) -> None:
    with RedisServer(tmp_path, persistence="always") as server:
        async with at(server.url) as records:
            assert not await records.warnings()
            await records.put("key", "a", b"kept", 0)
            await asyncio.to_thread(server.restart)
            assert await records.get("key", "a") == Record("key", "a", b"kept", 1)
            await records.put("key", "a", b"new", 1)
            await asyncio.to_thread(server.kill)
            with pytest.raises(BackendUnavailable):
                await records.revision()
            await asyncio.to_thread(server.start)
            assert await records.revision() == 2


@pytest.mark.once
async def test_a_redis_that_forgets_is_told_before_and_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path, extra=["maxmemory 64mb", "maxmemory-policy allkeys-lru"]) as server:
        store = f"memory://{tmp_path.name}"
        world = await asyncio.to_thread(World.over, leases=store, records=server.url)
        try:
            told = [each.getMessage() for each in caplog.records]
            assert any("appendonly yes" in each and "loses all API keys" in each for each in told)
            assert any("allkeys-lru" in each for each in told)
            assert not any("gone from the records" in each for each in told)
            await asyncio.to_thread(server.restart)
            async with asyncio.timeout(60):
                while "all keys are gone from the records" not in caplog.text:
                    await asyncio.sleep(0.05)
        finally:
            await asyncio.to_thread(world.close)


@pytest.mark.once
async def test_a_redis_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with at(f"{server.url}?socket_timeout=100ms&socket_connect_timeout=100ms") as records:
            await records.put("key", "a", b"kept", 0)
            server.pause()
            with pytest.raises(BackendUnavailable, match="in time"):
                await records.get("key", "a")
            server.resume()
            found = await until_it_works(lambda: asyncio.ensure_future(records.get("key", "a")))
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
            found = await until_it_works(lambda: asyncio.ensure_future(records.get("key", "a")))
            assert found == Record("key", "a", b"kept", 1)
            made = await until_it_works(
                lambda: asyncio.ensure_future(records.put("key", "b", b"", 0))
            )
            assert made.version == 1


@pytest.mark.once
async def test_a_node_of_a_cluster_is_named_as_one(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path).start()
    try:
        for node in cluster.nodes:
            async with at(f"{node.url}?cluster=true") as records:
                assert await records.revision() == 0
        errors = []
        for node in cluster.nodes:
            async with at(node.url) as records:
                try:
                    await records.open()
                except NotConfigured as error:
                    errors.append(str(error))
        assert len(errors) == 2  # the third has the slot of the records
        assert all("?cluster=true" in error for error in errors)
    finally:
        cluster.stop()


@pytest.mark.once
async def test_a_slot_that_moves_to_another_node(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        here = cluster.node_of(STATE)
        there = next(node for node in cluster.nodes if node is not here)
        async with at(f"{here.url}?cluster=true") as records:
            await records.put("key", "a", b"one", 0)
            with here.client() as source, there.client() as target:
                slot: Any = source.execute_command("CLUSTER KEYSLOT", STATE)
                ids: Any = [each.execute_command("CLUSTER MYID") for each in (source, target)]
                target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
                source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
                for key in (STATE, kind_key("key")):
                    source.execute_command("MIGRATE", HOST, there.port, key, 0, 5000)
                assert await records.get("key", "a") == Record("key", "a", b"one", 1)
                await records.put("key", "a", b"two", 1)
                assert source.dbsize() == 0
                for node in (target, source):
                    node.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
            await records.put("key", "a", b"three", 2)
            assert await records.get("key", "a") == Record("key", "a", b"three", 3)
            assert await records.revision() == 3


async def _check_a_connection_that_is_cut(records: Records, cut: Callable[[], None]) -> None:
    """Cut before the loop can notice: to read is tried again; whether a write was done is unknown."""
    await records.put("key", "a", b"kept", 0)
    cut()
    assert await records.get("key", "a") == Record("key", "a", b"kept", 1)
    cut()
    assert await records.revision() == 1
    cut()
    with pytest.raises(BackendUnavailable):
        await records.put("key", "a", b"new", 1)
    found = await records.get("key", "a")
    assert found is not None
    assert (await records.put("key", "a", b"newer", found.version)).version == found.version + 1


async def test_a_redis_connection_that_is_cut(redis_url: str) -> None:
    def cut() -> None:
        with redis.Redis.from_url(redis_url) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    async with at(redis_url) as records:
        await _check_a_connection_that_is_cut(records, cut)


async def test_a_postgres_connection_that_is_cut(postgres_url: str) -> None:
    def cut() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    async with at(postgres_url) as records:
        await _check_a_connection_that_is_cut(records, cut)


# ---- PostgreSQL -----------------------------------------------------------------------------------


@pytest.mark.once
async def test_a_postgres_that_restarts(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server:
        async with at(server.url) as records:
            await records.put("key", "a", b"kept", 0)
            await asyncio.to_thread(server.restart)
            assert await records.get("key", "a") == Record("key", "a", b"kept", 1)
            await asyncio.to_thread(server.kill)
            with pytest.raises(BackendUnavailable):
                await records.revision()
            await asyncio.to_thread(server.start)
            assert await records.revision() == 1


async def test_a_row_that_another_transaction_keeps_is_given_up_in_time(
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


async def test_records_and_leases_share_a_schema_whichever_is_first(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    def lease(url: str) -> None:
        with dibs.sync.connect(url) as client, client.lock("x"):
            pass

    async with at(postgres_url) as records:
        await records.put("key", "a", b"", 0)
        await asyncio.to_thread(lease, postgres_url)
        assert await records.revision() == 1
    second = await asyncio.to_thread(postgres_server.new_database)
    try:
        await asyncio.to_thread(lease, second)
        async with at(second) as records:
            await records.put("key", "a", b"", 0)
    finally:
        await asyncio.to_thread(postgres_server.drop_database, second)


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


async def test_a_role_that_may_make_no_tables_is_told_who_may(postgres_url: str, role: str) -> None:
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


async def test_the_log_in_a_database_is_only_added_to(postgres_url: str) -> None:
    async with at(postgres_url) as records:
        await records.append(b"line")
    with psycopg.connect(postgres_url, autocommit=True) as db:
        for statement in (b"UPDATE dibs.service_log SET value = ''", b"TRUNCATE dibs.service_log"):
            with pytest.raises(psycopg.errors.RaiseException, match="only added to"):
                db.execute(statement)


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_a_strict_default_isolation_loses_no_write(postgres_url: str, isolation: str) -> None:
    database = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as db:
        setting = f"ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'"
        db.execute(setting.encode())
    servers = [records_for(postgres_url) for _ in range(3)]
    try:
        tries = [server.append(b"%d" % each) for each, server in enumerate(servers * 5)]
        assert len(set(await asyncio.gather(*tries))) == 15
    finally:
        for server in servers:
            await server.close()


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


def test_records_work_in_any_loop_one_after_the_other(tmp_path: Path) -> None:
    async def once(expected: int) -> None:
        async with at(f"sqlite:///{tmp_path}/records.db") as records:
            await records.put("key", "a", b"", expected)

    for expected in range(3):
        asyncio.run(once(expected))
    assert not [t for t in threading.enumerate() if t.name.startswith("dibs-records")]
