"""The schema comes about once, whoever starts, and says how far it has come."""

import re
import threading
from pathlib import Path

import psycopg
import pytest

from dibs.model import Acquire, Granted, Release
from dibs.stores.postgres import schema
from dibs.stores.postgres.schema import FORMAT, NEWEST, VERSION_QUERY, Version
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.ledger_subject import Database, migrate

ALL = list(range(1, NEWEST + 1))


def version(connection: "psycopg.Connection[tuple[object, ...]]") -> Version | None:
    return schema.version_of(connection.execute(VERSION_QUERY.encode()).fetchall())


def test_they_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in schema.migrations()] == ALL
    assert [migration.number for migration in schema.pending(None)] == ALL
    assert [migration.number for migration in schema.pending(NEWEST - 1)] == [NEWEST]
    assert schema.pending(NEWEST) == []
    assert schema.pending(NEWEST + 7) == []


def test_from_nothing_to_the_newest_and_then_nothing_more(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert version(connection) is None
        assert migrate(connection) == ALL
        assert version(connection) == (NEWEST, FORMAT)
        assert migrate(connection) == []


def test_of_two_at_once_one_does_it(postgres_url: str) -> None:
    done: list[list[int]] = []
    together = threading.Barrier(4)

    def start() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            together.wait()
            done.append(migrate(connection))

    started = [threading.Thread(target=start) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert sorted(done) == [[], [], [], ALL]


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


@pytest.mark.parametrize("other", [1, 99])
def test_another_format_is_left_alone(postgres_url: str, other: int) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA dibs")
        comment = f"COMMENT ON SCHEMA dibs IS 'Dibs: migration 3, format {other}'"
        connection.execute(comment.encode())
        assert version(connection) == (3, other)
        assert migrate(connection) == []
        assert version(connection) == (3, other)


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
