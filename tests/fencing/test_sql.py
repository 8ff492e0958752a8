"""The guard for SQL, over sqlite3 and psycopg."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from dibs import DibsError, NotConfigured
from dibs.fencing import AsyncSqlFence, SqlFence, StaleToken

KEY = b"lock:order:42"


class Database:
    """One database, and connections to it that close with the test."""

    def __init__(self, kind: str, place: str) -> None:
        self.is_sqlite = kind == "sqlite"
        self._place = place
        self._open: list[Any] = []

    def connect(self, **options: Any) -> Any:
        if self.is_sqlite:
            connection: Any = sqlite3.connect(self._place, timeout=0, **options)
        else:
            connection = psycopg.connect(self._place, **options)
        self._open.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._open:
            connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    sqlite = request.param == "sqlite"
    place = str(tmp_path / "a.db") if sqlite else request.getfixturevalue("postgres_url")
    found = Database(request.param, place)
    connection = found.connect()
    SqlFence().create(connection)
    SqlFence().create(connection)  # it is there: so be it
    connection.execute("CREATE TABLE orders (state TEXT)")
    connection.commit()
    yield found
    found.close()


def test_a_refused_write_is_undone_with_its_transaction(database: Database) -> None:
    connection, fence = database.connect(), SqlFence()
    fence.check((KEY, 9), connection)
    connection.commit()
    with pytest.raises(StaleToken), connection:
        connection.execute("INSERT INTO orders VALUES ('paid')")
        fence.check((KEY, 8), connection)
    connection = database.connect()
    assert connection.execute("SELECT * FROM orders").fetchall() == []


def test_a_token_that_was_rolled_back_was_not_seen(database: Database) -> None:
    connection, fence = database.connect(), SqlFence()
    fence.check((KEY, 9), connection)
    connection.rollback()
    fence.check((KEY, 8), connection)
    connection.commit()


@pytest.mark.parametrize("second", [8, 9])
def test_others_wait_until_the_transaction_ends(database: Database, second: int) -> None:
    """Also with the same token: a newer one could else write first, and be overwritten."""
    fence, mine, theirs = SqlFence(), database.connect(), database.connect()
    if not database.is_sqlite:
        theirs.execute("SET lock_timeout = '50ms'")
        theirs.commit()
    fence.check((KEY, 8), mine)
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.LockNotAvailable)):
        fence.check((KEY, second), theirs)
    theirs.rollback()
    mine.commit()
    fence.check((KEY, second), theirs)
    theirs.commit()


def test_without_a_transaction_it_is_refused(database: Database) -> None:
    """The check would stand by itself, and a newer holder could write between it and the write."""
    alone: dict[str, Any] = (
        {"isolation_level": None} if database.is_sqlite else {"autocommit": True}
    )
    connection, fence = database.connect(**alone), SqlFence()
    with pytest.raises(DibsError, match="in the transaction that writes"):
        fence.check((KEY, 9), connection)
    connection.execute("BEGIN")  # and the token of that has not been seen
    fence.check((KEY, 8), connection)
    connection.execute("COMMIT")


def test_a_table_that_is_not_there(database: Database) -> None:
    connection = database.connect()
    connection.execute("INSERT INTO orders VALUES ('paid')")
    with pytest.raises(NotConfigured, match=r"no table forgotten: call create\(connection\)"):
        SqlFence("forgotten").check((KEY, 5), connection)
    connection.rollback()


def test_a_table_of_another_name(database: Database) -> None:
    connection, fence = database.connect(), SqlFence("my_fences")
    fence.create(connection)
    fence.check((KEY, 9), connection)
    connection.commit()
    assert connection.execute("SELECT resource, slot, token FROM my_fences").fetchall() == [
        ("lock:order:42", 0, 9)
    ]
    connection.rollback()
    SqlFence().check((KEY, 8), connection)
    connection.rollback()


async def test_over_an_async_connection(postgres_url: str) -> None:
    fence = AsyncSqlFence()
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await fence.create(connection)
        await fence.check((KEY, 9), connection)
        await connection.commit()
        with pytest.raises(StaleToken) as caught:
            async with connection.transaction():
                await fence.check((KEY, 8), connection)
        assert caught.value.seen == 9
        await connection.set_autocommit(True)
        with pytest.raises(DibsError, match="in the transaction that writes"):
            await fence.check((KEY, 10), connection)
        await connection.set_autocommit(False)
        await fence.check((KEY, 9), connection)  # the token of that has not been seen


class Dumb:
    """A connection that doesn't tell whose it is, as wrappers are; it takes `%s`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def cursor(self) -> Any:
        cursor = self._connection.cursor()

        class Cursor:
            rowcount = property(lambda self: cursor.rowcount)
            fetchone = staticmethod(cursor.fetchone)
            close = staticmethod(cursor.close)

            def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> None:
                assert "?" not in sql
                cursor.execute(sql.replace("%s", "?"), parameters)

        return Cursor()


def test_a_stale_token_is_refused_in_a_pipeline(postgres_url: str) -> None:
    """Where the driver doesn't know yet how many rows there were."""
    fence = SqlFence()
    with psycopg.connect(postgres_url) as connection:
        fence.create(connection)
        fence.check((KEY, 100), connection)
        connection.commit()
        with pytest.raises(StaleToken), connection.pipeline():
            fence.check((KEY, 50), connection)
        connection.rollback()
        with connection.pipeline():
            fence.check((KEY, 101), connection)


def test_rows_may_be_mappings(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, row_factory=dict_row) as connection:
        SqlFence().create(connection)
        SqlFence().check((KEY, 100), connection)
        with pytest.raises(StaleToken, match="100"):
            SqlFence().check((KEY, 50), connection)


def test_a_connection_that_tells_no_paramstyle() -> None:
    connection = Dumb(sqlite3.connect(":memory:"))
    with pytest.raises(TypeError, match='paramstyle="format"'):
        SqlFence(assume_transaction=True).check((KEY, 8), connection)
    fence = SqlFence(paramstyle="format", assume_transaction=True)
    fence.create(connection)
    fence.check((KEY, 8), connection)
    with pytest.raises(StaleToken):
        fence.check((KEY, 7), connection)
    connection._connection.close()


def test_what_makes_no_sense_is_refused() -> None:
    for table in ("", "a b", "a;drop", "a.b.c", "1a"):
        with pytest.raises(ValueError, match="give a name"):
            SqlFence(table)
    with pytest.raises(ValueError, match="paramstyle"):
        SqlFence(paramstyle="dollar")
