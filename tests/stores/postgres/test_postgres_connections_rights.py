"""Who may connect, who may do what, and which format is read."""

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Granted
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore
from dibs.stores.postgres.schema import FORMAT, NEWEST
from tests.connections import connection_to
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.connections_help import Mode, Room, acquire, admin, both, say

SECRET = "hunter2"


def refusal[E: Exception](mode: Mode, url: str, kind: type[E]) -> E:
    """What connecting raises."""

    async def body(room: Room) -> None:
        with pytest.raises(kind) as failure:
            await room.connect()
        assert SECRET not in f"{failure.value} {failure.value.__cause__!r}"
        found.append(failure.value)

    found: list[E] = []
    Room(mode, url).run(body)
    return found[0]


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


@both
def test_a_wrong_password_is_forbidden(mode: Mode, tmp_path: Path) -> None:
    rules = tmp_path / "pg_hba.conf"
    rules.write_text("host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
    tmp_path.chmod(0o755)
    with PostgresServer(tmp_path / "server", options={"hba_file": str(rules)}) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
        place = server.url.partition("@")[2]
        for password in (f":{SECRET}", ""):
            url = f"postgresql://app{password}@{place}"
            assert place in str(refusal(mode, url, Forbidden))


@both
def test_an_unknown_role_and_an_unknown_database(
    mode: Mode, postgres_server: PostgresServer
) -> None:
    url = postgres_server.url_of("postgres", user="nobody-of-that-name")
    assert "role" in str(refusal(mode, url, Forbidden))
    error = refusal(mode, postgres_server.url_of("no-such-database"), NotConfigured)
    assert "createdb" in str(error)


@both
def test_where_nobody_answers(mode: Mode) -> None:
    place = f"127.0.0.1:{free_port()}/x"
    url = f"postgresql://app:{SECRET}@{place}"
    assert place in str(refusal(mode, url, BackendUnavailable))
    began = time.monotonic()
    assert "no-such-host" in str(
        refusal(mode, "postgresql://no-such-host.invalid/x", BackendUnavailable)
    )
    assert time.monotonic() - began < 20


@both
def test_a_server_that_only_reads_says_so(mode: Mode, postgres_url: str) -> None:
    url = f"{postgres_url}?options=-c%20default_transaction_read_only%3Don"
    assert "read-only" in str(refusal(mode, url, BackendUnavailable))


@both
def test_no_connection_is_left(mode: Mode, postgres_url: str) -> None:
    with admin(postgres_url) as connection:
        name = postgres_url.rpartition("/")[2]
        connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0".encode())
        connection.execute("CREATE ROLE little LOGIN")
        try:
            url = postgres_url.replace("dibs@", "little@")
            assert "too many connections" in str(refusal(mode, url, BackendUnavailable))
        finally:
            connection.execute("DROP ROLE little")


# ---- the schema -----------------------------------------------------------------------------------


@both
def test_a_role_that_may_not_migrate_names_the_command(
    mode: Mode, postgres_url: str, role: str
) -> None:
    error = refusal(mode, role, Forbidden)
    place = postgres_url.partition("@")[2]
    assert f"dibs migrate --url postgresql://OWNER@{place}" in str(error)
    refused = refusal(mode, f"{postgres_url}?migrate=no", Forbidden)
    assert "dibs migrate" in str(refused)
    with admin(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('dibs')").fetchone() == (None,)


@both
def test_a_role_without_rights_is_forbidden_and_with_them_it_works(
    mode: Mode, postgres_url: str, role: str
) -> None:
    PostgresStore(postgres_url).migrate()
    name = role.partition("//")[2].partition("@")[0]
    assert "GRANT USAGE ON SCHEMA dibs" in str(refusal(mode, role, Forbidden))
    with admin(postgres_url) as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA dibs TO {name}".encode())
        for what in ("TABLES", "FUNCTIONS"):
            right = "SELECT, INSERT, UPDATE, DELETE" if what == "TABLES" else "EXECUTE"
            connection.execute(f"GRANT {right} ON ALL {what} IN SCHEMA dibs TO {name}".encode())

    async def body(room: Room) -> None:
        assert isinstance(await say(await room.connect(), acquire("a")), Granted)

    Room(mode, f"{role}?migrate=no").run(body)


@both
def test_a_newer_format_is_not_touched(mode: Mode, postgres_url: str) -> None:
    PostgresStore(postgres_url).migrate()
    newer = f"Dibs: migration {NEWEST + 7}, format {FORMAT + 1}"
    with admin(postgres_url) as connection:
        connection.execute(f"COMMENT ON SCHEMA dibs IS '{newer}'".encode())
    error = refusal(mode, postgres_url, IncompatibleVersion)
    assert f"has format {FORMAT + 1}" in str(error)
    assert f"reads format {FORMAT}" in str(error)


@both
def test_an_older_format_is_not_touched(mode: Mode, postgres_url: str) -> None:
    with admin(postgres_url) as connection:
        connection.execute("CREATE SCHEMA dibs")
        connection.execute("COMMENT ON SCHEMA dibs IS 'Dibs: migration 13, format 1'")
    error = refusal(mode, postgres_url, IncompatibleVersion)
    assert "has format 1, of an earlier release" in str(error)
    assert "DROP SCHEMA dibs CASCADE" in str(error)
    with admin(postgres_url) as connection:
        assert connection.execute("SELECT to_regclass('dibs.keys')").fetchone() == (None,)


@both
def test_a_format_that_changes_under_us_is_noticed(mode: Mode, postgres_url: str) -> None:
    """A newer release migrates while we are connected: its functions refuse ours."""

    async def body(room: Room) -> None:
        backend = await room.connect()
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

    Room(mode, postgres_url).run(body)


@both
def test_a_newer_migration_of_our_format_is_fine(mode: Mode, postgres_url: str) -> None:
    PostgresStore(postgres_url).migrate()
    newer = f"Dibs: migration {NEWEST + 7}, format {FORMAT}"
    with admin(postgres_url) as connection:
        connection.execute(f"COMMENT ON SCHEMA dibs IS '{newer}'".encode())

    async def body(room: Room) -> None:
        assert isinstance(await say(await room.connect(), acquire("a")), Granted)

    Room(mode, postgres_url).run(body)


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
