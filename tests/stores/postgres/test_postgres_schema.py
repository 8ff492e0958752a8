"""Who may connect and migrate, which format is read, and `dibs migrate`."""

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Acquire, Granted, Release
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore, schema
from dibs.stores.postgres.schema import FORMAT, NEWEST, VERSION_QUERY, Version, migrations
from dibs.sync import connect
from tests.connections import connection_to
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.database import Database, admin, migrate, say
from tests.stores.sides import Side, acquire, both_sides

SECRET = "hunter2"


async def refusal[E: Exception](side: Side, url: str, kind: type[E]) -> E:
    """What connecting raises."""
    with pytest.raises(kind) as failure:
        await side.open(url)
    assert SECRET not in f"{failure.value} {failure.value.__cause__!r}"
    return failure.value


@pytest.fixture
def role(postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
    """The URL of a role that may connect, and nothing more."""
    name = f"r_{uuid.uuid4().hex}"
    with admin(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield postgres_url.replace("dibs@", f"{name}@")
    with admin(postgres_url) as connection:
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())


# ---- connecting -----------------------------------------------------------------------------------


@both_sides
async def test_a_wrong_password_is_forbidden(side: Side, tmp_path: Path) -> None:
    rules = tmp_path / "pg_hba.conf"
    rules.write_text("host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
    tmp_path.chmod(0o755)
    with PostgresServer(tmp_path / "server", options={"hba_file": str(rules)}) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
        place = server.url.partition("@")[2]
        for password in (f":{SECRET}", ""):
            url = f"postgresql://app{password}@{place}"
            assert place in str(await refusal(side, url, Forbidden))


@both_sides
async def test_an_unknown_role_and_an_unknown_database(
    side: Side, postgres_server: PostgresServer
) -> None:
    url = postgres_server.url_of("postgres", user="nobody-of-that-name")
    assert "role" in str(await refusal(side, url, Forbidden))
    error = await refusal(side, postgres_server.url_of("no-such-database"), NotConfigured)
    assert "createdb" in str(error)


@both_sides
async def test_a_server_that_only_reads_says_so(side: Side, postgres_url: str) -> None:
    url = f"{postgres_url}?options=-c%20default_transaction_read_only%3Don"
    assert "read-only" in str(await refusal(side, url, BackendUnavailable))


@both_sides
async def test_no_connection_is_left(side: Side, postgres_url: str) -> None:
    with admin(postgres_url) as connection:
        name = postgres_url.rpartition("/")[2]
        connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0".encode())
        connection.execute("CREATE ROLE little LOGIN")
        try:
            url = postgres_url.replace("dibs@", "little@")
            assert "too many connections" in str(await refusal(side, url, BackendUnavailable))
        finally:
            connection.execute("DROP ROLE little")


# ---- the schema -----------------------------------------------------------------------------------


@both_sides
async def test_a_role_that_may_not_migrate_names_the_command(
    side: Side, postgres_url: str, role: str
) -> None:
    error = await refusal(side, role, Forbidden)
    place = postgres_url.partition("@")[2]
    assert f"dibs migrate --url postgresql://OWNER@{place}" in str(error)
    refused = await refusal(side, f"{postgres_url}?migrate=no", Forbidden)
    assert "dibs migrate" in str(refused)
    with admin(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('dibs')").fetchone() == (None,)


@both_sides
async def test_a_newer_format_is_not_touched(side: Side, postgres_url: str) -> None:
    PostgresStore(postgres_url).migrate()
    newer = f"Dibs: migration {NEWEST + 7}, format {FORMAT + 1}"
    with admin(postgres_url) as connection:
        connection.execute(f"COMMENT ON SCHEMA dibs IS '{newer}'".encode())
    error = await refusal(side, postgres_url, IncompatibleVersion)
    assert f"has format {FORMAT + 1}" in str(error)
    assert f"reads format {FORMAT}" in str(error)


@both_sides
async def test_an_older_format_is_not_touched(side: Side, postgres_url: str) -> None:
    with admin(postgres_url) as connection:
        connection.execute("CREATE SCHEMA dibs")
        connection.execute("COMMENT ON SCHEMA dibs IS 'Dibs: migration 13, format 1'")
    error = await refusal(side, postgres_url, IncompatibleVersion)
    assert "has format 1, of an earlier release" in str(error)
    assert "DROP SCHEMA dibs CASCADE" in str(error)
    with admin(postgres_url) as connection:
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


@both_sides
async def test_a_newer_migration_of_our_format_is_fine(side: Side, postgres_url: str) -> None:
    PostgresStore(postgres_url).migrate()
    newer = f"Dibs: migration {NEWEST + 7}, format {FORMAT}"
    with admin(postgres_url) as connection:
        connection.execute(f"COMMENT ON SCHEMA dibs IS '{newer}'".encode())

    assert isinstance(await say(await side.open(postgres_url), acquire("a")), Granted)


def test_all_who_start_at_once_find_one_schema(postgres_url: str) -> None:
    found: list[object] = []
    start = threading.Barrier(8)

    def use(number: int) -> None:
        backend = connection_to(PostgresStore(postgres_url), "blocking")
        start.wait()
        try:
            step(backend.open(listen=False))
            found.append(step(backend.apply([acquire("a", b"lock:%d" % number)]))[0])
        except Exception as error:
            found.append(error)
        finally:
            step(backend.close())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(each) for each in found] == [Granted] * 8


ALL = list(range(1, NEWEST + 1))


def version(connection: "psycopg.Connection[tuple[object, ...]]") -> Version | None:
    return schema.version_of(connection.execute(VERSION_QUERY.encode()).fetchall())


def test_from_nothing_to_the_newest_and_then_nothing_more(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert version(connection) is None
        assert migrate(connection) == ALL
        assert version(connection) == (NEWEST, FORMAT)
        assert migrate(connection) == []


def test_an_older_database_gets_what_it_lacks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = schema.migrations()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        monkeypatch.setattr(schema, "migrations", lambda: known[:-1])
        monkeypatch.setattr(schema, "NEWEST", NEWEST - 1)
        assert migrate(connection) == ALL[:-1]
        assert version(connection) == (NEWEST - 1, FORMAT)
        monkeypatch.undo()
        assert migrate(connection) == [NEWEST]
        assert version(connection) == (NEWEST, FORMAT)


def test_one_that_fails_leaves_nothing_behind(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.SyntaxError):
            migrate(connection, ("CREATE FUNCTION dibs.sweep", "CREATE NONSENSE dibs.sweep"))
        connection.rollback()
        assert version(connection) is None
        assert migrate(connection) == ALL


def test_a_schema_of_that_name_that_is_not_ours_is_not_taken_for_it(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA dibs")
        assert version(connection) is None
        assert migrate(connection) == ALL, "one that is empty was prepared for us"


def test_the_page_grants_a_role_just_enough(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """What `docs/postgres.md` says, done to the letter."""
    page = Path(__file__).parents[3] / "docs" / "postgres.md"
    [owner, user] = re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL)[:2]
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for role in ("dibs_owner", "app"):
            connection.execute(f"DROP ROLE IF EXISTS {role}".encode())
        connection.execute(owner.replace("mydb", name).encode())
        try:
            with psycopg.connect(
                postgres_server.url_of(name, user="dibs_owner"), autocommit=True
            ) as theirs:
                assert migrate(theirs) == ALL
                theirs.execute(user.encode())
            check_as_app(postgres_server.url_of(name, user="app"))
        finally:
            connection.execute("DROP OWNED BY app, dibs_owner CASCADE")
            connection.execute("DROP ROLE app, dibs_owner")


def check_as_app(url: str) -> None:
    app = Database(url)
    assert version(app.connection) == (NEWEST, FORMAT)
    [granted, _, released], _ = app.apply(
        [
            Acquire(b"a", "id", "o", 30.0),
            Acquire(b"a", "w", "o", 30.0, queue=True),
            Release(b"a", "id"),
        ]
    )
    assert isinstance(granted, Granted), released
    app.execute("SELECT dibs.sweep()")
    app.execute("SELECT dibs.guard('a', 1)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("CREATE TABLE dibs.mine ()")
    app.close()


def dibs_migrate(*words: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DIBS_")}
    return subprocess.run(
        [sys.executable, "-m", "dibs", "migrate", *words],
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_there(url: str) -> bool:
    with admin(url) as connection:
        return connection.execute("SELECT to_regnamespace('dibs')").fetchone() != (None,)


def test_a_dry_run_changes_nothing(postgres_url: str) -> None:
    done = dibs_migrate("--url", postgres_url, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"would apply {each.number:04} {each.name}" for each in migrations()
    ]
    assert not is_there(postgres_url)


def test_it_is_applied_once(postgres_url: str) -> None:
    first = dibs_migrate("--url", postgres_url)
    assert (first.returncode, first.stderr) == (0, "")
    applied = [line for line in first.stdout.splitlines() if line.startswith("applied")]
    assert len(applied) == len(migrations())
    assert first.stdout.startswith("applied 0001 ")
    assert is_there(postgres_url)
    again = dibs_migrate("--url", postgres_url)
    assert again.returncode == 0
    assert again.stdout.startswith(f"{postgres_url} is up to date\n")


def test_what_it_says_to_grant_is_enough(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    told = dibs_migrate("--url", postgres_url).stdout
    grants = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    theirs = postgres_url.replace("dibs@", "clerk@")
    with admin(postgres_url) as connection:
        connection.execute("CREATE ROLE clerk LOGIN")
        try:
            with connect(theirs) as client:
                with pytest.raises(Forbidden, match="GRANT USAGE ON SCHEMA dibs TO ROLE"):
                    client.lock("x").acquire(wait=0)
                for grant in grants:
                    connection.execute(grant.replace("ROLE", "clerk").encode())
                with client.lock("x") as lease:
                    lease.ensure()
        finally:
            connection.execute("DROP OWNED BY clerk")
            connection.execute("DROP ROLE clerk")


def test_json(postgres_url: str) -> None:
    secret = postgres_url.replace("dibs@", "dibs:hunter2@")
    for dry_run in (["--dry-run"], []):
        done = dibs_migrate("--url", secret, "--json", *dry_run)
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found["url"] == postgres_url.replace("dibs@", "dibs:***@")
        assert found["dry_run"] is bool(dry_run)
        assert [each["number"] for each in found["migrations"]] == [*range(1, NEWEST + 1)]
    assert json.loads(dibs_migrate("--url", postgres_url, "--json").stdout)["migrations"] == []


def test_whoever_may_not_is_told(postgres_server: PostgresServer, postgres_url: str) -> None:
    with admin(postgres_url) as connection:
        connection.execute("CREATE ROLE stranger LOGIN")
        try:
            url = postgres_url.replace("dibs@", "stranger@")
            done, dry = dibs_migrate("--url", url), dibs_migrate("--url", url, "--dry-run")
        finally:
            connection.execute("DROP ROLE stranger")
    assert done.returncode == 77
    assert "permission denied" in done.stderr
    assert dry.returncode == 77
    assert dry.stdout.startswith("would apply 0001 ")
    assert dry.stderr.startswith("dibs: this role may not ")
    assert not is_there(postgres_url)


def test_other_stores_need_none(tmp_path: Path) -> None:
    done = dibs_migrate("--url", f"sqlite:///{tmp_path}/leases.db")
    assert done.returncode == 0
    assert "needs no migrations" in done.stdout
