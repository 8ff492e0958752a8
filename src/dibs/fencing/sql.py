"""The guard for SQL: a table of the highest tokens, checked and raised in the transaction that writes."""

import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from dibs.errors import DibsError, NotConfigured
from dibs.fencing.sqlalchemy import SqlAlchemyConnection, adapted
from dibs.fencing.stamp import Stamp, Stamped, stale, stamp_of

TABLE = "dibs_fences"

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?", re.ASCII)

_MARKS = {"qmark": ("?",) * 3, "format": ("%s",) * 3, "numeric": (":1", ":2", ":3")}
_MARKS["pyformat"] = _MARKS["format"]  # every driver of that style takes a sequence as well
_MARKS["numeric_dollar"] = ("$1", "$2", "$3")

_CREATE = """\
CREATE TABLE IF NOT EXISTS {table} (
    resource TEXT NOT NULL, slot INTEGER NOT NULL, token BIGINT NOT NULL, PRIMARY KEY (resource, slot)
)"""

_RAISE = """\
INSERT INTO {table} AS f (resource, slot, token) VALUES ({0}, {1}, {2})
ON CONFLICT (resource, slot) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token"""

ONE_ROW = 1
"""The token was written. None: a higher one was seen. -1: the driver doesn't know yet, as in a pipeline."""

_LOOK = "SELECT token FROM {table} WHERE resource = {0} AND slot = {1}"

_OUTSIDE = (
    "the guard has to be in the transaction that writes, or a newer holder could write between the two: "
    "begin one first, check, write, commit (this connection is in none, and nothing was written)"
)


class _SqlFence:
    """Statements for databases with `INSERT … ON CONFLICT`: SQLite, PostgreSQL."""

    def __init__(
        self,
        table: str = TABLE,
        *,
        paramstyle: str | None = None,
        assume_transaction: bool = False,
    ) -> None:
        if not _IDENTIFIER.fullmatch(table):
            raise ValueError(f"the table is {table!r}: give a name, or schema.name")
        if paramstyle is not None and paramstyle not in _MARKS:
            raise ValueError(f"paramstyle is {paramstyle!r}: give one of {', '.join(_MARKS)}")
        self.table = table
        self._paramstyle = paramstyle
        self._assume_transaction = assume_transaction

    def _statements(self, connection: Any) -> tuple[str, str]:
        """The statements that raise a token and that look at it, with the marks of the driver."""
        marks = _MARKS[self._paramstyle or _style_of(connection)]
        return _RAISE.format(*marks, table=self.table), _LOOK.format(*marks, table=self.table)

    @contextmanager
    def _explained(self) -> Generator[None]:
        """Raises `NotConfigured` where the database has no such table."""
        try:
            yield
        except Exception as error:
            said = str(error)
            if self.table in said and ("no such table" in said or "does not exist" in said):
                raise NotConfigured(
                    f"the database has no table {self.table}: call create(connection) of the fence once, or "
                    "create it in your migrations"
                ) from error
            raise

    def _refuse_outside(self, connection: Any, stamp: Stamp) -> None:
        """Raises `DibsError` for a connection without a transaction, `TypeError` where nobody knows."""
        inside = is_in_transaction(connection)
        if inside is False:
            raise DibsError(_OUTSIDE, key=stamp.key)
        if inside is None and not self._assume_transaction:
            raise TypeError(
                f"a {_driver_of(connection)} does not say whether it is in a transaction, and "
                "without one the fence protects nothing: if check and write are in one transaction, create "
                "the fence with assume_transaction=True"
            )


class SqlFence(_SqlFence):
    """Refuses stale writes to a database, over a connection of the user's own (DB-API 2 or SQLAlchemy).

    The table (`dibs_fences`, or another one, maybe in a schema) is created on request, or by your own
    migrations. Give `paramstyle` if the connection does not show its driver's: "format" for Django's, and
    "numeric_dollar" for psycopg's with `RawCursor`.
    Give `assume_transaction` if the driver does not show whether the connection is in a transaction (sqlite3,
    psycopg, Django and SQLAlchemy over these do): you promise that check and write are in one.
    """

    def create(self, connection: Any) -> None:
        """Create the table, if it isn't there; in the connection's transaction, if it has one."""
        cursor = adapted(connection).cursor()
        try:
            cursor.execute(_CREATE.format(table=self.table))
        finally:
            cursor.close()

    def check(self, by: Stamped, connection: Any) -> None:
        """Check the lease in this transaction. Call it before the first write.

        One statement a slot. From here on others with that key and slot wait until the transaction
        ends. Raises `StaleToken` if a higher token was seen: roll back then. Raises `DibsError` for a
        connection without a transaction, and `TypeError` if that is unknown; nothing was written
        then. Raises `NotConfigured` if the table is not there. At stricter isolation than READ
        COMMITTED the loser of a race gets the database's own serialization error.
        """
        stamp, connection = stamp_of(by), adapted(connection)
        self._refuse_outside(connection, stamp)
        raising, looking = self._statements(connection)
        cursor = connection.cursor()
        try:
            for slot in stamp.slots:
                with self._explained():
                    cursor.execute(raising, (stamp.text, slot, stamp.token))
                if cursor.rowcount != ONE_ROW:
                    cursor.execute(looking, (stamp.text, slot))
                    _check_seen(stamp, slot, cursor.fetchone())
        finally:
            cursor.close()


class AsyncSqlFence(_SqlFence):
    """The same for `psycopg.AsyncConnection`, and for SQLAlchemy's `AsyncConnection` and `AsyncSession`."""

    def _blocking(self) -> SqlFence:
        """The same fence, for SQLAlchemy's `run_sync`."""
        return SqlFence(
            self.table, paramstyle=self._paramstyle, assume_transaction=self._assume_transaction
        )

    async def create(self, connection: Any) -> None:
        """Create the table: see `SqlFence.create`."""
        if hasattr(connection, "run_sync"):
            await connection.run_sync(self._blocking().create)
            return
        async with connection.cursor() as cursor:
            await cursor.execute(_CREATE.format(table=self.table))

    async def check(self, by: Stamped, connection: Any) -> None:
        """Check the lease: see `SqlFence.check`."""
        if hasattr(connection, "run_sync"):
            await connection.run_sync(partial(self._blocking().check, by))
            return
        stamp = stamp_of(by)
        self._refuse_outside(connection, stamp)
        raising, looking = self._statements(connection)
        async with connection.cursor() as cursor:
            for slot in stamp.slots:
                with self._explained():
                    await cursor.execute(raising, (stamp.text, slot, stamp.token))
                if cursor.rowcount != ONE_ROW:
                    await cursor.execute(looking, (stamp.text, slot))
                    _check_seen(stamp, slot, await cursor.fetchone())


def _check_seen(stamp: Stamp, slot: int, row: Any) -> None:
    """Raises `StaleToken` unless the token stands there now."""
    seen = 0 if row is None else int(row["token"] if isinstance(row, Mapping) else row[0])
    if seen != stamp.token:
        raise stale(stamp.key, slot, stamp.token, seen)


def _style_of(connection: Any) -> str:
    """How the connection's driver marks parameters. Raises `TypeError` where it doesn't say."""
    if isinstance(connection, SqlAlchemyConnection):
        if connection.paramstyle in _MARKS:
            return connection.paramstyle
        connection = connection.driver
    for cls in type(connection).__mro__:
        module = sys.modules.get(cls.__module__.partition(".")[0])
        style = getattr(module, "paramstyle", None)
        if style in _MARKS:
            return str(style)
    raise TypeError(
        f"a {_driver_of(connection)} does not say how its driver marks parameters: create the "
        'fence with paramstyle="qmark" (?) or paramstyle="format" (%s)'
    )


def _driver_of(connection: Any) -> str:
    """The class of the driver's connection, for messages."""
    if isinstance(connection, SqlAlchemyConnection):
        connection = connection.driver
    return type(connection).__qualname__


IDLE = 0
"""libpq's word for a connection that is in no transaction."""


def is_in_transaction(connection: Any) -> bool | None:
    """Whether the next write is in one transaction with those after it; None if that is unknown.

    Call it before writing: a connection that begins a transaction by itself is in one.
    """
    if isinstance(connection, SqlAlchemyConnection):
        connection = connection.driver
    atomic = getattr(connection, "in_atomic_block", None)  # Django's
    if isinstance(atomic, bool):
        return atomic or not connection.get_autocommit()
    autocommit = getattr(connection, "autocommit", None)
    if autocommit is False:  # as the DB-API has it: the first statement begins one
        return True
    inside = getattr(connection, "in_transaction", None)
    if isinstance(inside, bool):
        return inside or _begins_by_itself(connection)
    status = getattr(getattr(connection, "info", None), "transaction_status", None)  # psycopg's
    return None if status is None else int(status) != IDLE


def _begins_by_itself(connection: Any) -> bool:
    """Whether sqlite3 begins a transaction before a write. Two of its settings prevent that."""
    level = getattr(connection, "isolation_level", None)
    return level is not None and getattr(connection, "autocommit", None) is not True
