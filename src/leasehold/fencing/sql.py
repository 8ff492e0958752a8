"""The guard for SQL: a table of the highest tokens, checked and raised in the transaction that writes."""

import re
import sys
from typing import Any

from leasehold.errors import LeaseholdError
from leasehold.fencing.stale import StaleToken, stale
from leasehold.fencing.stamp import Stamp, Stamped, stamp_of

TABLE = "leasehold_fences"

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?", re.ASCII)

_MARKS = {"qmark": ("?",) * 3, "format": ("%s",) * 3, "numeric": (":1", ":2", ":3")}
_MARKS["pyformat"] = _MARKS["format"]  # every driver of that style takes a sequence as well

_CREATE = """\
CREATE TABLE IF NOT EXISTS {table} (
    resource TEXT NOT NULL, slot INTEGER NOT NULL, token BIGINT NOT NULL, PRIMARY KEY (resource, slot)
)"""

_RAISE = """\
INSERT INTO {table} AS f (resource, slot, token) VALUES ({0}, {1}, {2})
ON CONFLICT (resource, slot) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token"""

_LOOK = "SELECT token FROM {table} WHERE resource = {0} AND slot = {1}"

IDLE = 0
"""libpq's word for a connection that is in no transaction."""

_OUTSIDE = (
    "the guard has to be in the transaction that writes, or a newer holder could write between the two: "
    "begin one first, check, write, commit (this connection is in none)"
)


class _Statements:
    """What the guard says to a database that knows `INSERT … ON CONFLICT`: SQLite, PostgreSQL."""

    def __init__(self, table: str = TABLE, *, paramstyle: str | None = None) -> None:
        if not _IDENTIFIER.fullmatch(table):
            raise ValueError(f"the table is {table!r}: give a name, or schema.name")
        if paramstyle is not None and paramstyle not in _MARKS:
            raise ValueError(f"paramstyle is {paramstyle!r}: give one of {', '.join(_MARKS)}")
        self.table = table
        self._paramstyle = paramstyle

    def _create(self) -> str:
        return _CREATE.format(table=self.table)

    def _raising(self, connection: Any) -> str:
        return _RAISE.format(*self._marks(connection), table=self.table)

    def _looking(self, connection: Any) -> str:
        return _LOOK.format(*self._marks(connection), table=self.table)

    def _marks(self, connection: Any) -> tuple[str, ...]:
        return _MARKS[self._paramstyle or _style_of(connection)]


class SqlFence(_Statements):
    """Refuses stale writes to a database, over a connection of the user's own (DB-API 2).

    The table (`leasehold_fences`, or another one, maybe in a schema) is created on request, or by your own
    migrations. `paramstyle` is for connections that don't tell it, such as Django's: there "format".
    """

    def create(self, connection: Any) -> None:
        """Create the table, if it isn't there; in the connection's transaction, if it has one."""
        cursor = connection.cursor()
        try:
            cursor.execute(self._create())
        finally:
            cursor.close()

    def check(self, connection: Any, by: Stamped) -> None:
        """Let whoever holds the lease write in this transaction; to be called before the first write.

        One statement a slot. From here on others with that key and slot wait until the transaction
        ends. Raises `StaleToken` if a higher token was seen: roll back then. Raises `LeaseholdError` for a
        connection without a transaction; at stricter isolation than READ COMMITTED the loser of a race
        gets the database's own serialization error.
        """
        stamp = stamp_of(by)
        cursor = connection.cursor()
        try:
            for slot in stamp.slots:
                cursor.execute(self._raising(connection), (stamp.text, slot, stamp.token))
                if cursor.rowcount == 0:
                    cursor.execute(self._looking(connection), (stamp.text, slot))
                    raise _refused(stamp, slot, cursor.fetchone())
        finally:
            cursor.close()
        if not _in_transaction(connection):
            raise LeaseholdError(_OUTSIDE, key=stamp.key)


class AsyncSqlFence(_Statements):
    """The same for an asyncio connection whose `cursor()` is psycopg's: `psycopg.AsyncConnection`."""

    async def create(self, connection: Any) -> None:
        """As `SqlFence.create`."""
        async with connection.cursor() as cursor:
            await cursor.execute(self._create())

    async def check(self, connection: Any, by: Stamped) -> None:
        """As `SqlFence.check`."""
        stamp = stamp_of(by)
        async with connection.cursor() as cursor:
            for slot in stamp.slots:
                await cursor.execute(self._raising(connection), (stamp.text, slot, stamp.token))
                if cursor.rowcount == 0:
                    await cursor.execute(self._looking(connection), (stamp.text, slot))
                    raise _refused(stamp, slot, await cursor.fetchone())
        if not _in_transaction(connection):
            raise LeaseholdError(_OUTSIDE, key=stamp.key)


def _refused(stamp: Stamp, slot: int, row: Any) -> StaleToken:
    return stale(stamp.key, slot, stamp.token, 0 if row is None else int(row[0]))


def _style_of(connection: Any) -> str:
    """How the connection's driver marks parameters. Raises `TypeError` where it doesn't say."""
    for cls in type(connection).__mro__:
        module = sys.modules.get(cls.__module__.partition(".")[0])
        style = getattr(module, "paramstyle", None)
        if style in _MARKS:
            return str(style)
    raise TypeError(
        f"a {type(connection).__qualname__} doesn't tell how its driver marks parameters: make the fence "
        'with paramstyle="qmark" (?) or paramstyle="format" (%s)'
    )


def _in_transaction(connection: Any) -> bool:
    """Whether what was just said to it stands with what follows; True where nobody can tell."""
    known = getattr(connection, "in_transaction", None)  # sqlite3
    if isinstance(known, bool):
        return known
    status = getattr(getattr(connection, "info", None), "transaction_status", None)  # psycopg
    return status is None or int(status) != IDLE
