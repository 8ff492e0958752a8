"""Who may connect and migrate, which format is read, and `dibs migrate`."""

import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Acquire, Granted, Release
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore, schema
from dibs.stores.postgres.schema import FORMAT, NEWEST, VERSION_QUERY, Version
from dibs.sync import connect
from tests.cli.processes import Main
from tests.connections import connection_to
from tests.pages import blocks
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.database import Database, admin, migrate, say
from tests.stores.sides import Side, acquire, both_sides, in_threads, use

ALL = list(range(1, NEWEST + 1))


def version(connection: "psycopg.Connection[tuple[object, ...]]") -> Version | None:
    return schema.version_of(connection.execute(VERSION_QUERY.encode()).fetchall())


def has_schema(url: str) -> bool:
    with admin(url) as connection:
        return connection.execute("SELECT to_regnamespace('dibs')").fetchone() != (None,)


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """The URL of a role that may connect, and nothing more."""
    name = f"r_{uuid.uuid4().hex}"
    with admin(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN".encode())
        yield postgres_url.replace("dibs@", f"{name}@")
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())


@pytest.fixture
def dibs(capsys: pytest.CaptureFixture[str]) -> Iterator[Main]:
    """Runs `dibs` in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGTTOU)}
    yield Main(capsys)
    for number, handler in before.items():
        signal.signal(number, handler)


@both_sides
async def test_what_connecting_reports(
    side: Side, postgres_server: PostgresServer, postgres_url: str, role: str
) -> None:
    name = postgres_url.rpartition("/")[2]
    read_only = f"{postgres_url}?options=-c%20default_transaction_read_only%3Don"
    with admin(postgres_url) as connection:
        for url, kind, told in (
            (postgres_server.url_of(name, user="nobody-of-that-name"), Forbidden, "role"),
            (postgres_server.url_of("no-such-database"), NotConfigured, "createdb"),
            (read_only, BackendUnavailable, "read-only"),
            (role, BackendUnavailable, "too many connections"),
        ):
            limit = 0 if url == role else -1
            connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT {limit}".encode())
            with pytest.raises(kind, match=told):
                await side.open(url)


@in_threads
async def test_a_newer_migration_of_our_format_is_fine_and_another_format_is_not_touched(
    side: Side, postgres_url: str
) -> None:
    PostgresStore(postgres_url).migrate()
    with admin(postgres_url) as connection:

        def mark(migration: int, number: int) -> None:
            text = f"Dibs: migration {migration}, format {number}"
            connection.execute(f"COMMENT ON SCHEMA dibs IS '{text}'".encode())

        mark(NEWEST + 7, FORMAT)
        assert isinstance(await say(await side.open(postgres_url), acquire("a")), Granted)
        mark(NEWEST + 8, FORMAT + 1)
        told = f"has format {FORMAT + 1}.*reads format {FORMAT}"
        with pytest.raises(IncompatibleVersion, match=told):
            await side.open(postgres_url)
        connection.execute("DROP SCHEMA dibs CASCADE")
        connection.execute("CREATE SCHEMA dibs")
        mark(13, 1)
        told = "has format 1, of an earlier release.*DROP SCHEMA dibs CASCADE"
        with pytest.raises(IncompatibleVersion, match=told):
            await side.open(postgres_url)
        assert connection.execute("SELECT to_regclass('dibs.keys')").fetchone() == (None,)


@both_sides
async def test_a_format_that_changes_under_us_is_noticed(side: Side, postgres_url: str) -> None:
    """A newer release migrates while we are connected: its functions refuse ours."""
    backend = await side.open(postgres_url)
    with admin(postgres_url) as connection:
        connection.execute("""
            CREATE OR REPLACE FUNCTION dibs.apply(
                format integer, commands jsonb, own_inbox text,
                now double precision DEFAULT NULL, stamp bigint DEFAULT NULL
            ) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
                RAISE EXCEPTION 'this database has format 99, and was asked for format %', format
                    USING ERRCODE = 'ZDV01';
            END $$""")
    for batch in ([acquire("a")], [acquire("a"), acquire("b")]):
        with pytest.raises(IncompatibleVersion, match="has format 99"):
            await backend.apply(batch)


def test_all_who_start_at_once_find_one_schema(postgres_url: str) -> None:
    start = threading.Barrier(8)

    def use(number: int) -> object:
        backend = connection_to(PostgresStore(postgres_url), "blocking")
        start.wait()
        step(backend.open(listen=False))
        (reply,) = step(backend.apply([acquire("a", b"lock:%d" % number)]))
        step(backend.close())
        return type(reply)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(use, range(8))) == [Granted] * 8


def test_an_older_database_gets_what_it_lacks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was prepared for us, with an empty schema, lacks everything."""
    known = schema.migrations()
    with admin(postgres_url) as connection:
        with pytest.raises(psycopg.errors.SyntaxError):
            migrate(connection, ("CREATE FUNCTION dibs.sweep", "CREATE NONSENSE dibs.sweep"))
        connection.rollback()
        connection.execute("CREATE SCHEMA dibs")
        assert version(connection) is None, "what fails leaves nothing behind"
        monkeypatch.setattr(schema, "migrations", lambda: known[:-1])
        monkeypatch.setattr(schema, "NEWEST", NEWEST - 1)
        assert migrate(connection) == ALL[:-1]
        assert version(connection) == (NEWEST - 1, FORMAT)
        monkeypatch.undo()
        assert migrate(connection) == [NEWEST]
        assert version(connection) == (NEWEST, FORMAT)
        assert migrate(connection) == []


def test_the_page_grants_a_role_just_enough(
    dibs: Main, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """What `docs/postgres.md` says, done to the letter. `dibs migrate` prints the same grants."""
    owner, grants = blocks("postgres.md", "sql")[:2]
    name = postgres_url.rpartition("/")[2]
    with admin(postgres_url) as connection:
        connection.execute("DROP ROLE IF EXISTS dibs_owner, app")
        connection.execute(owner.replace("mydb", name).encode())
        try:
            url = postgres_server.url_of(name, user="dibs_owner")
            printed = dibs("migrate", "--url", url).out.partition("Grants for another role:")[2]
            assert printed.replace("ROLE", "app").split() == grants.split()
            with connect(postgres_server.url_of(name, user="app")) as client:
                with pytest.raises(Forbidden, match="GRANT USAGE ON SCHEMA dibs TO ROLE"):
                    client.lock("x").acquire(wait=0)
                with admin(url) as theirs:
                    theirs.execute(grants.encode())
                client.lock("x").acquire(wait=0).release()
            check_as_app(postgres_server.url_of(name, user="app"))
        finally:
            connection.execute("DROP OWNED BY app, dibs_owner CASCADE")
            connection.execute("DROP ROLE app, dibs_owner")


def check_as_app(url: str) -> None:
    app = Database(url)
    waiter = Acquire(b"a", "w", "o", 30.0, queue=True)
    replies, _ = app.apply([Acquire(b"a", "id", "o", 30.0), waiter, Release(b"a", "id")])
    assert isinstance(replies[0], Granted)
    app.execute("SELECT dibs.sweep()")
    app.execute("SELECT dibs.guard('a', 1)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("CREATE TABLE dibs.mine ()")
    app.close()


def test_it_is_applied_once_and_a_dry_run_changes_nothing(dibs: Main, postgres_url: str) -> None:
    steps = [f"{each.number:04} {each.name}" for each in schema.migrations()]
    for options, done, is_there in ((["--dry-run"], "would apply", False), ([], "applied", True)):
        told = dibs("migrate", "--url", postgres_url, *options)
        assert (told.code, told.err) == (0, "")
        assert told.out.splitlines()[: len(steps)] == [f"{done} {each}" for each in steps]
        assert has_schema(postgres_url) == is_there
    again = dibs("migrate", "--url", postgres_url)
    assert again.code == 0
    assert again.out.startswith(f"{postgres_url} is up to date\n")


def test_a_role_that_may_not_migrate_is_told(dibs: Main, postgres_url: str, role: str) -> None:
    place = postgres_url.partition("@")[2]
    with pytest.raises(Forbidden, match=f"dibs migrate --url postgresql://OWNER@{place}"):
        use(role)
    with pytest.raises(Forbidden, match="dibs migrate"):
        use(f"{postgres_url}?migrate=no")
    for options, out, err in (([], "", "permission denied"), (["--dry-run"], "0001", "may not")):
        done = dibs("migrate", "--url", role, *options)
        assert (done.code, out in done.out, err in done.err) == (77, True, True)
    assert not has_schema(postgres_url)
