"""Connections to PostgreSQL: what a call costs, what a session needs, and what a break leaves behind."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable
from dibs.model import Granted, Inspect, Refused, Release, Released, Status
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore
from dibs.stores.postgres.connection import Statement
from dibs.stores.postgres.errors import SqlError
from tests.connections import connection_to
from tests.servers.certificates import key_of, self_signed
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_files import give
from tests.stores.postgres.database import Traced, admin, say, wire_of
from tests.stores.sides import KEY, Runway, Side, acquire, both_sides, in_tasks

# ---- round trips ----------------------------------------------------------------------------------


@both_sides
async def test_an_acquire_is_one_round_trip_and_so_is_a_release(
    side: Side, postgres_url: str
) -> None:
    backend = await side.open(postgres_url)
    with Traced(wire_of(backend)) as first:
        assert isinstance(await say(backend, acquire("a")), Granted)
    with Traced(wire_of(backend)) as last:
        assert await say(backend, Release(KEY, "a")) == Released()
    for seen in (first, last):
        assert (seen.sent("Sync"), seen.sent("Bind"), seen.sent("Parse")) == (1, 1, 0)


@both_sides
async def test_a_batch_is_one_round_trip(side: Side, postgres_url: str) -> None:
    backend = await side.open(postgres_url)
    keys = [b"lock:%d" % number for number in range(512)]
    with Traced(wire_of(backend)) as seen:
        replies = await backend.apply([acquire("a", key) for key in keys])
    assert {type(reply) for reply in replies} == {Granted}
    assert seen.sent("Sync") == 1


# ---- what breaks ----------------------------------------------------------------------------------


@both_sides
async def test_a_failure_of_the_moment_is_tried_once_more(side: Side, postgres_url: str) -> None:
    """A deadlock's victim has done nothing; the second time all is well."""
    with admin(postgres_url) as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute("""
            CREATE FUNCTION hapless(fails bigint) RETURNS bigint LANGUAGE plpgsql AS $$
            DECLARE try bigint := nextval('public.tries');
            BEGIN
                IF try <= fails THEN
                    RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
                END IF;
                RETURN try;
            END $$""")

    backend = await side.open(postgres_url, listen=False)
    ask = Statement("hapless", "SELECT public.hapless(%s)")
    assert await backend._session.ask(ask, ["1"]) == [(2,)]
    with pytest.raises(BackendUnavailable, match="deadlock detected"):
        await backend._session.ask(ask, ["99"])
    assert isinstance(await say(backend, acquire("a")), Granted)


@both_sides
async def test_what_was_prepared_may_vanish(side: Side, postgres_url: str) -> None:
    backend = await side.open(postgres_url, listen=False)
    await wire_of(backend).run("DISCARD ALL", 5)
    assert isinstance(await say(backend, acquire("a")), Granted)


@both_sides
async def test_a_schema_that_vanished_is_made_anew(side: Side, postgres_url: str) -> None:
    backend = await side.open(postgres_url, listen=False)
    with admin(postgres_url) as connection:
        connection.execute("DROP SCHEMA dibs CASCADE")
    assert isinstance(await say(backend, acquire("a")), Granted)


# ---- time zones, forks, leaving -------------------------------------------------------------------


@both_sides
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


@both_sides
async def test_closing_leaves_no_connection_on_the_server(side: Side, postgres_url: str) -> None:
    await say(await side.open(postgres_url), acquire("a"))
    await side.close()
    assert_nobody_is_connected(postgres_url)


def assert_nobody_is_connected(url: str) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dibs'"
    with admin(url) as connection:
        end = time.monotonic() + 5
        while (count := connection.execute(query).fetchone()) != (0,):
            assert time.monotonic() < end, count
            time.sleep(0.02)


@both_sides
async def test_a_session_has_what_it_needs(side: Side, postgres_url: str) -> None:
    """Not synced commits could grant a lease twice after a crash; other settings are the user's."""
    mine = "-c%20synchronous_commit%3Doff%20-c%20statement_timeout%3D7s"

    backend = await side.open(f"{postgres_url}?options={mine}")
    show = "SELECT current_setting('synchronous_commit'), current_setting('statement_timeout')"
    assert await wire_of(backend).run(show, 5) == [("on", "7s")]


@pytest.mark.parametrize("pooler", ["auto", "yes"])
@both_sides
async def test_idle_keys_are_thrown_out_in_time(
    side: Side, pooler: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.stores.postgres.ledger.SWEEP_EVERY", 50)

    backend = await side.open(f"{postgres_url}?pooler={pooler}")
    with admin(postgres_url) as connection:
        connection.execute("CREATE SEQUENCE sweeps")
        connection.execute("ALTER FUNCTION dibs.sweep RENAME TO real_sweep")
        connection.execute("""
            CREATE FUNCTION dibs.sweep(integer) RETURNS bigint LANGUAGE sql
            AS $$ SELECT nextval('dibs.sweeps') $$""")
        for number in range(120):
            key = b"lock:%d" % number
            status = await say(backend, Inspect(key))
            assert isinstance(status, Status)
            assert status.key == key, "never the answer to the sweep"
        [(sweeps,)] = connection.execute("SELECT last_value FROM sweeps").fetchall()
    assert sweeps == 2


def test_many_threads_need_few_connections(postgres_url: str) -> None:
    with dibs.sync.connect(postgres_url) as client:

        def cycle(number: int) -> None:
            for _ in range(5):
                with client.lock(f"{number}"):
                    pass

        threads = [threading.Thread(target=cycle, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with admin(postgres_url) as connection:
            [(count,)] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dibs'"
            ).fetchall()
    assert count <= 12


async def opened(url: str) -> Any:
    backend = connection_to(PostgresStore(url), "async")
    await backend.open(listen=False)
    return backend


async def test_one_that_has_not_left_is_given_up_alone(postgres_url: str) -> None:
    backend, runway = await opened(postgres_url), Runway()
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("LOCK TABLE dibs.keys IN ACCESS EXCLUSIVE MODE")
        backend.submit([acquire("a")], runway.land)
        backend.submit([acquire("b")], lambda _: None)()
    ((reply,),) = await runway.wait(1)  # type: ignore[misc]
    assert isinstance(reply, Granted)
    assert isinstance((await backend.apply([acquire("b")]))[0], Refused)
    await backend.close()


async def test_what_may_have_been_done_is_not_asked_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler says so whose server has gone, perhaps after the commit."""

    def lose(*_: object) -> None:
        raise SqlError("08P01", "server conn crashed?")

    backend, runway = await opened(postgres_url), Runway()
    wire = wire_of(backend)
    monkeypatch.setattr("dibs.stores.postgres.aio.rows_of", lose)
    backend.submit([acquire("a")], runway.land)
    backend.submit([acquire("b"), acquire("c")], runway.land)
    assert [type(each) for each in await runway.wait(2)] == [BackendUnavailable] * 2
    assert wire.is_cut
    [status] = await backend.apply([Inspect(KEY)])
    assert isinstance(status, Status)
    assert len(status.holders) == 1, "it was done"
    await backend.close()


@both_sides
async def test_tls(side: Side, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "tls" / "server.crt")
    copy = tmp_path / "trusted.crt"
    copy.write_bytes(certificate.read_bytes())
    give(certificate.parent)
    key_of(certificate).chmod(0o600)
    files = {"ssl_cert_file": str(certificate), "ssl_key_file": str(key_of(certificate))}
    with PostgresServer(tmp_path / "server", options={"ssl": "on", **files}) as server:
        url = f"{server.url}?sslmode=verify-full&sslrootcert={copy}"
        waiter, other = await side.open(url), await side.open(url, listen=False)
        in_use = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert await wire_of(waiter).run(in_use, 5) == [(True,)]
        large = [acquire("a", b"lock:%d" % number, note="x" * 50_000) for number in range(100)]
        assert {type(reply) for reply in await waiter.apply(large)} == {Granted}
        await say(other, acquire("a"))
        await say(waiter, acquire("b", queue=True, inbox=waiter.inbox))
        assert await say(other, Release(KEY, "a")) == Released()
        assert (await side.pushed(waiter, "granted")).key == KEY


@both_sides
async def test_a_socket_in_the_file_system(side: Side, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    give(folder)
    options = {"unix_socket_directories": str(folder)}
    with PostgresServer(tmp_path / "server", options=options) as server:
        url = f"postgresql:///postgres?host={folder}&port={server.port}&user=dibs"
        assert isinstance(await say(await side.open(url), acquire("a")), Granted)


@pytest.fixture
def store(postgres_url: str) -> PostgresStore:
    store = PostgresStore(postgres_url)
    store.migrate()
    return store


def test_the_users_own_settings_don_t_matter(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(
        postgres_url, row_factory=psycopg.rows.dict_row, options="-c search_path=nowhere"
    ) as connection:
        (granted,) = step(store.within(connection).apply([acquire("a", note="é%s$1")]))
        assert isinstance(granted, Granted)


def test_a_failed_transaction_says_so(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        with pytest.raises(BackendUnavailable, match="25P02"):
            step(store.within(connection).apply([acquire("a")]))
        connection.rollback()
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
