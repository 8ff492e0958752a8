"""The guard for SQL, over sqlite3, psycopg and Django: only within a transaction, and undone with it."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from dibs import DibsError, NotConfigured
from dibs.fencing import AsyncSqlFence, SqlFence, StaleToken
from tests.runtime.scripts import run_script

KEY = b"lock:order:42"
OUTSIDE = "in the transaction that writes"


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


@pytest.mark.parametrize("options", [{"autocommit": True}, {"isolation_level": None}], ids=str)
def test_without_a_transaction_it_is_refused(database: Database, options: dict[str, Any]) -> None:
    """The check would stand by itself, and a newer holder could write between it and the write."""
    if "isolation_level" in options and not database.is_sqlite:
        pytest.skip("an option of sqlite3")
    connection = database.connect(**options)
    for fence in (SqlFence(), SqlFence(assume_transaction=True)):
        with pytest.raises(DibsError, match=OUTSIDE):
            fence.check((KEY, 9), connection)
    connection.execute("BEGIN")  # and the token of that has not been seen
    fence.check((KEY, 8), connection)
    connection.execute("COMMIT")


def test_a_table_of_ones_own_and_one_that_is_not_there(database: Database) -> None:
    connection, fence = database.connect(), SqlFence("my_fences")
    with pytest.raises(NotConfigured, match=r"no table my_fences: call create\(connection\)"):
        connection.execute("INSERT INTO orders VALUES ('paid')")
        fence.check((KEY, 5), connection)
    connection.rollback()
    fence.create(connection)
    fence.check((KEY, 9), connection)
    connection.commit()
    rows = connection.execute("SELECT resource, slot, token FROM my_fences").fetchall()
    assert rows == [("lock:order:42", 0, 9)]
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
        with pytest.raises(DibsError, match=OUTSIDE):
            await fence.check((KEY, 10), connection)


def test_in_a_pipeline_with_rows_that_are_mappings_and_by_raw_cursors(postgres_url: str) -> None:
    """In a pipeline the driver does not know yet how many rows there were."""
    fence = SqlFence()
    with psycopg.connect(postgres_url, row_factory=dict_row) as connection:
        fence.create(connection)
        fence.check((KEY, 100), connection)
        connection.commit()
        with pytest.raises(StaleToken, match="100"):
            fence.check((KEY, 50), connection)
        connection.rollback()
        with pytest.raises(StaleToken), connection.pipeline():
            fence.check((KEY, 50), connection)
        connection.rollback()
        with connection.pipeline():
            fence.check((KEY, 101), connection)
    fence = SqlFence(paramstyle="numeric_dollar")
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as connection:
        fence.check((KEY, 101), connection)
        with pytest.raises(StaleToken):
            fence.check((KEY, 100), connection)


def test_one_that_tells_nothing_is_refused_unless_it_is_promised() -> None:
    """A wrapper tells neither whether it is in a transaction, nor how values are marked."""
    said: list[str] = []

    def execute(sql: str, parameters: object = ()) -> None:
        said.append(sql)

    cursor = SimpleNamespace(execute=execute, rowcount=1, close=lambda: None)
    wrapper: Any = SimpleNamespace(cursor=lambda: cursor)
    sqlalchemy_s: Any = SimpleNamespace(
        exec_driver_sql=execute,
        connection=SimpleNamespace(dbapi_connection=wrapper),
        dialect=SimpleNamespace(paramstyle="named"),
    )
    for connection in (wrapper, sqlalchemy_s):
        with pytest.raises(TypeError, match=r"a SimpleNamespace .* assume_transaction=True"):
            SqlFence(paramstyle="format").check((KEY, 9), connection)
        with pytest.raises(TypeError, match=r'a SimpleNamespace .* paramstyle="format"'):
            SqlFence(assume_transaction=True).check((KEY, 8), connection)
    assert said == []
    SqlFence(paramstyle="format", assume_transaction=True).check((KEY, 9), wrapper)
    assert "VALUES (%s, %s, %s)" in said[0]


def test_what_makes_no_sense_is_refused() -> None:
    for table in ("", "a b", "a;drop", "a.b.c", "1a"):
        with pytest.raises(ValueError, match="give a name"):
            SqlFence(table)
    with pytest.raises(ValueError, match="paramstyle"):
        SqlFence(paramstyle="dollar")


@pytest.mark.multiprocess
def test_django_s(tmp_path: Path) -> None:
    lines = run_script(
        """
import sys
import django
from django.conf import settings

file = {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1] + "/app.sqlite3"}
settings.configure(DATABASES={"default": file}, INSTALLED_APPS=[])
django.setup()
from django.db import connection, transaction
from dibs.fencing import SqlFence, StaleToken
from dibs.errors import DibsError

KEY = b"lock:order:42"
fence = SqlFence(paramstyle="format")
fence.create(connection)
try:
    fence.check((KEY, 9), connection)
except DibsError as error:
    print(str(error).partition(",")[0])
with transaction.atomic():
    fence.check((KEY, 8), connection)
try:
    with transaction.atomic():
        fence.check((KEY, 7), connection)
except StaleToken as error:
    print(error.token, error.seen)
transaction.set_autocommit(False)
fence.check((KEY, 10), connection)
transaction.rollback()
""",
        str(tmp_path),
    )
    assert lines == ["the guard has to be in the transaction that writes", "7 8"]
