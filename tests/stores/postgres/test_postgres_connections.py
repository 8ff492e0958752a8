"""Connections to PostgreSQL: what a call costs, what a session needs, and the user's own connections."""

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable, Forbidden
from dibs.model import Granted, Inspect, Refused, Release, Status
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore
from tests.servers.certificates import key_of, self_signed
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_files import give
from tests.servers.waiting import wait_until
from tests.stores.postgres.database import admin, say, wire_of
from tests.stores.sides import KEY, Side, acquire, both_sides, in_tasks

# ---- calls and sessions ---------------------------------------------------------------------------


@both_sides
async def test_what_vanished_is_made_anew(side: Side, postgres_url: str) -> None:
    backend = await side.open(postgres_url, listen=False)
    await wire_of(backend).run("DISCARD ALL", 5)  # what was prepared
    assert isinstance(await say(backend, acquire("a")), Granted)
    with admin(postgres_url) as connection:
        connection.execute("DROP SCHEMA dibs CASCADE")
    assert isinstance(await say(backend, acquire("b")), Granted)


@in_tasks
async def test_no_session_timezone_bends_a_lease(side: Side, postgres_url: str) -> None:
    zones = ["UTC", "Asia/Tokyo", "America/New_York", "Australia/Lord_Howe"]
    backends = [await side.open(f"{postgres_url}?options=-c%20timezone%3D{zone}") for zone in zones]
    granted = await say(backends[0], acquire("a", ttl=60.0))
    assert isinstance(granted, Granted)
    assert abs(granted.token / 1e6 - time.time()) < 60
    for other in backends[1:]:
        refused = await say(other, acquire("b"))
        assert isinstance(refused, Refused)
        assert 50 < refused.holders[0].expires_in <= 60


@pytest.mark.parametrize("pooler", ["auto", "yes"])
@both_sides
async def test_idle_keys_are_thrown_out_in_time(
    side: Side, pooler: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.stores.postgres.ledger.SWEEP_EVERY", 50)
    backend = await side.open(f"{postgres_url}?pooler={pooler}")
    await backend.apply([acquire("a"), Release(KEY, "a")])
    with admin(postgres_url) as connection:
        connection.execute("UPDATE dibs.keys SET touched = 0")
        for number in range(60):
            key = b"lock:%d" % number
            status = await say(backend, Inspect(key))
            assert isinstance(status, Status)
            assert status.key == key, "never the answer to the sweep"
        idle = "SELECT 1 FROM dibs.keys WHERE key = 'lock:key'"
        await side.until(lambda: not connection.execute(idle).fetchall())


def connections(url: str) -> int:
    """Number of our connections on the server."""
    with admin(url) as connection:
        [(count,)] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dibs'"
        ).fetchall()
    return int(count)


def test_many_threads_need_few_connections_and_leave_none(postgres_url: str) -> None:
    """Nor does a loop."""

    async def use_a_loop() -> None:
        async with dibs.connect(postgres_url) as client, client.lock("a"):
            assert connections(postgres_url) > 0

    asyncio.run(use_a_loop())
    with dibs.sync.connect(postgres_url) as client:

        def cycle(number: int) -> None:
            for _ in range(3):
                with client.lock(f"{number}"):
                    pass

        with ThreadPoolExecutor(40) as threads:
            list(threads.map(cycle, range(40)))
        assert 0 < connections(postgres_url) <= 12
    wait_until(lambda: not connections(postgres_url), "all have left")


# ---- ways to connect ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demanding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server with TLS, and a role with a password."""
    folder = tmp_path_factory.mktemp("demanding")
    certificate, rules = self_signed(folder / "server.crt"), folder / "pg_hba.conf"
    rules.write_text("host all app all scram-sha-256\nhost all all all trust\n")
    folder.chmod(0o755)
    (folder / "trusted.crt").write_bytes(certificate.read_bytes())
    give(folder)
    key_of(certificate).chmod(0o600)
    options = {
        "ssl": "on",
        "ssl_cert_file": str(certificate),
        "ssl_key_file": str(key_of(certificate)),
        "hba_file": str(rules),
    }
    with PostgresServer(folder / "server", options=options) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
        yield server


@both_sides
async def test_tls(side: Side, demanding: PostgresServer) -> None:
    trust = demanding.folder.parent / "trusted.crt"
    url = f"{demanding.new_database()}?sslmode=verify-full&sslrootcert={trust}"
    waiter, other = await side.open(url), await side.open(url, listen=False)
    in_use = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    assert await wire_of(waiter).run(in_use, 5) == [(True,)]
    large = [acquire("a", b"lock:%d" % number, note="x" * 50_000) for number in range(100)]
    assert {type(reply) for reply in await waiter.apply(large)} == {Granted}
    await side.hand_over(waiter, other)


@both_sides
async def test_a_wrong_password_is_forbidden(side: Side, demanding: PostgresServer) -> None:
    place = demanding.url.partition("@")[2]
    for password in (":hunter2", ""):
        with pytest.raises(Forbidden, match=place) as refusal:
            await side.open(f"postgresql://app{password}@{place}")
        assert "hunter2" not in f"{refusal.value} {refusal.value.__cause__!r}"


# ---- the user's own connection --------------------------------------------------------------------


@pytest.fixture
def store(postgres_url: str) -> PostgresStore:
    store = PostgresStore(postgres_url)
    store.migrate()
    return store


def test_the_users_own_settings_don_t_matter_and_failures_are_reported(
    store: PostgresStore, postgres_url: str
) -> None:
    with psycopg.connect(
        postgres_url, row_factory=psycopg.rows.dict_row, options="-c search_path=nowhere"
    ) as connection:
        (granted,) = step(store.within(connection).apply([acquire("a", note="é%s$1")]))
        assert isinstance(granted, Granted)
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        with pytest.raises(BackendUnavailable, match="25P02"):
            step(store.within(connection).apply([acquire("a")]))
        connection.close()
        with pytest.raises(BackendUnavailable, match="broke"):
            step(store.within(connection).apply([acquire("a")]))


@in_tasks
async def test_a_users_transaction_grants_nobody_else(
    side: Side, store: PostgresStore, postgres_url: str
) -> None:
    """A hold has expired, and the next waiter would hear of its grant after the commit only."""
    waiter: Any = await side.open(postgres_url)
    await say(waiter, acquire("a", ttl=0.2))
    await say(waiter, acquire("b", queue=True, inbox=waiter.inbox))
    await asyncio.sleep(0.3)
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        refused = await say(store.within(connection), acquire("c"))
        assert isinstance(refused, Refused), "it passes no queue"
        assert refused.holders == ()
        await connection.commit()
    assert list(await waiter.notifications(0.1)) == []
    assert isinstance(await say(waiter, acquire("b", queue=True)), Granted)


# ---- poolers -------------------------------------------------------------------------------------


@pytest.fixture
def pooled(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """A database through a pooler that changes server connections with every transaction."""
    with PgBouncer(tmp_path / "pooler", postgres_server, pool_size=3) as pooler:
        yield pooler.url_of(postgres_url)


@both_sides
async def test_behind_a_transaction_pooler_nobody_listens(
    side: Side, pooled: str, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not where it is found out, with one warning, and not where the URL says so."""
    store = PostgresStore(pooled)
    with caplog.at_level(logging.WARNING, "dibs"):
        for where in (store, store, f"{postgres_url}?pooler=yes"):
            connection = await side.open(where)
            assert connection.inbox == ""
            assert list(await connection.notifications(0.01)) == []
            if side.mode == "blocking":
                connection.wake()
                assert list(await connection.notifications(30)) == []
            assert isinstance(await say(connection, acquire("a")), Granted)
    assert len([line for line in caplog.messages if "transaction pooler" in line]) == 1
    await side.close()
    with admin(pooled) as connection:
        for _ in range(6):  # sessions of others are left as they were
            shown = connection.execute(
                "SELECT current_setting('statement_timeout'), current_setting('jit'),"
                " (SELECT count(*) FROM pg_listening_channels()),"
                " (SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'dibs%')"
            ).fetchone()
            assert shown == ("0", "on", 0, 0)


def test_waiters_behind_a_pooler_are_served_in_turn(pooled: str) -> None:
    """Tasks and threads wait for one key, by asking."""
    order: list[str] = []

    def in_a_thread(name: str) -> None:
        with dibs.sync.connect(pooled) as client, client.lock("x", ttl=10):
            order.append(name)

    def in_a_task(name: str) -> None:
        async def wait() -> None:
            async with dibs.connect(pooled) as client, client.lock("x", ttl=10):
                order.append(name)

        asyncio.run(wait())

    with dibs.sync.connect(pooled) as client, ThreadPoolExecutor(4) as threads:
        with client.lock("x", ttl=10):
            turns = []
            for name, wait in zip("abcd", (in_a_task, in_a_thread) * 2, strict=True):
                turns.append(threads.submit(wait, name))
                wait_until(lambda: client.status("x").waiting == len(turns), "it waits")
        for turn in turns:
            turn.result(30)
    assert order == [*"abcd"]
