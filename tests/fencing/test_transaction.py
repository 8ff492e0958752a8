"""The guard for SQL knows whether it is in a transaction, and says nothing to a database before that."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dibs import DibsError
from dibs.fencing import SqlFence
from tests.runtime.scripts import run_script

KEY = b"lock:order:42"


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A database file with the table."""
    file = str(tmp_path / "a.db")
    connection = sqlite3.connect(file)
    SqlFence().create(connection)
    connection.close()
    return file


@pytest.mark.parametrize("options", [{"isolation_level": None}, {"autocommit": True}])
def test_sqlite_that_begins_nothing_by_itself(place: str, options: dict[str, Any]) -> None:
    connection, fence = sqlite3.connect(place, **options), SqlFence()
    with pytest.raises(DibsError, match="in the transaction that writes"):
        fence.check((KEY, 9), connection)
    connection.execute("BEGIN")
    fence.check((KEY, 8), connection)
    connection.execute("COMMIT")
    connection.close()


@pytest.mark.parametrize("options", [{}, {"isolation_level": "IMMEDIATE"}, {"autocommit": False}])
def test_sqlite_that_begins_by_itself(place: str, options: dict[str, Any]) -> None:
    connection, fence = sqlite3.connect(place, **options), SqlFence()
    fence.check((KEY, 9), connection)
    assert connection.in_transaction
    connection.rollback()
    fence.check((KEY, 8), connection)
    connection.rollback()
    connection.close()


def test_one_that_tells_nothing_is_refused_unless_it_is_promised() -> None:
    def cursor() -> Any:
        raise AssertionError("something was said to it")

    dumb: Any = SimpleNamespace(cursor=cursor)
    with pytest.raises(TypeError, match="assume_transaction=True"):
        SqlFence(paramstyle="format").check((KEY, 9), dumb)
    with pytest.raises(AssertionError):
        SqlFence(paramstyle="format", assume_transaction=True).check((KEY, 9), dumb)


def test_a_promise_does_not_hide_what_is_known(place: str) -> None:
    connection = sqlite3.connect(place, isolation_level=None)
    with pytest.raises(DibsError, match="in the transaction that writes"):
        SqlFence(assume_transaction=True).check((KEY, 9), connection)
    connection.close()


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
    print(str(error).partition(":")[0])
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
fence.check((KEY, 9), connection)
transaction.rollback()
print("ended")
""",
        str(tmp_path),
    )
    assert lines[0].startswith("the guard has to be in the transaction that writes")
    assert lines[1:] == ["7 8", "ended"]
