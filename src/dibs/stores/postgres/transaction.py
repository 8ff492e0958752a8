"""Commands that are part of a transaction of the caller's own.

A lease that is taken there stands when the transaction commits, and never was if it rolls back. Until
then the key's row stays locked: others are answered `Failed("busy")`, and need not wait for it. So are
renewals: the ttl has to be longer than the transaction.
"""

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import tuple_row

from dibs.errors import BackendUnavailable, NotConfigured
from dibs.model import Command, Reply
from dibs.stores.postgres import ledger
from dibs.stores.postgres.aio import connect_loop
from dibs.stores.postgres.connection import Session, Site, Statement, Values
from dibs.stores.postgres.errors import error_of, explain, is_worth_another_try
from dibs.stores.postgres.schema import Rows
from dibs.stores.postgres.threads import connect_thread


class WithinConnection:
    """Applies in the caller's connection and transaction, blocking or async as the connection is.

    It neither opens nor closes that connection. An error of the
    database ends the caller's transaction, as any statement's would; a deadlock or a serialization
    failure is raised as psycopg's own, since code that retries transactions looks for that.
    """

    def __init__(self, site: Site, connection: object) -> None:
        if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            kind = type(connection)
            raise TypeError(
                f"within= is a {kind.__module__}.{kind.__qualname__}: give the connection of psycopg 3 "
                "(psycopg.Connection or psycopg.AsyncConnection) that the transaction is on"
            )
        self.blocking: bool = isinstance(connection, psycopg.Connection)
        """The caller's connection blocks."""
        self._site = site
        self._connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] = connection

    async def open(self) -> None:
        """The caller has. Raises `NotConfigured` for a connection to another database than ours."""
        await check_identity(self._connection, self._ask, self._site, blocking=self.blocking)

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        if not commands:
            return []
        values = ledger.parameters(commands, None, *self._site.time())
        replies, _ = ledger.read_answer(await self._ask(ledger.APPLY, values), commands, "")
        return replies

    async def _ask(self, statement: Statement, values: Values = ()) -> Rows:
        given = self._connection
        cursor: Any
        if isinstance(given, psycopg.AsyncConnection):
            cursor = psycopg.AsyncRawCursor(given, row_factory=tuple_row)
        else:
            cursor = psycopg.RawCursor(given, row_factory=tuple_row)
        try:
            await _now(cursor.execute(statement.text, values))
            rows: Rows = await _now(cursor.fetchall())
        except psycopg.Error as error:
            if is_worth_another_try(error_of(error)):
                raise
            raise _explain(error, self._site.place) from error
        return rows


async def _now(result: Any) -> Any:
    """The result of a call on the caller's connection: awaited for asyncio, as it is for threads."""
    return await result if isawaitable(result) else result


def _explain(error: psycopg.Error, place: str) -> Exception:
    """The error for a caller whose transaction is on that connection."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    state = error.sqlstate
    if state is None or state.startswith("57P"):  # the session was ended
        return BackendUnavailable(
            f"the connection given as within= broke ({said}): unless it had committed, nothing "
            "that was done in its transaction stands"
        )
    match state:
        case "25006":
            return BackendUnavailable(f"the transaction given as within= only reads ({said})")
        case "25P02":
            return BackendUnavailable(
                f"the transaction given as within= has failed already ({said}, SQLSTATE 25P02): "
                "roll it back"
            )
        case _:
            return explain(error_of(error), place)


WHICH = Statement(
    "dibs_which",
    """
    SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text,
        d.oid::text, d.datname::text
    FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()
    """,
)
"""Host, port and name do not identify it: a pooler, a socket or an alias can lead to the same database."""

type Identity = tuple[str, str]
type Ask = Callable[[Statement], Awaitable[Rows]]

_connections: WeakKeyDictionary[Any, Identity] = WeakKeyDictionary()
"""Connections of users that lead to the right database, and need not be asked again."""


async def check_identity(connection: Any, ask: Ask, site: Site, *, blocking: bool) -> None:
    """Raise `NotConfigured` unless the connection, which `ask` asks, leads to the site's database.

    The first check of a site connects to it, and makes the schema if the role may.
    """
    known = site.identity
    if known is not None and _connections.get(connection) == known:
        return
    [(started, number, name)] = await ask(WHICH)
    theirs = started, number
    if known != theirs and await _look(site, blocking=blocking) != theirs:
        raise NotConfigured(
            f"the connection given as within= leads to another database ({name}) than the one that "
            f"this client keeps its leases in ({site.place}): a lease can only be part of a transaction "
            "in its own database"
        )
    _connections[connection] = theirs


async def _look(site: Site, *, blocking: bool) -> Identity:
    """Ask the site's own database."""
    session: Session[Any] = Session(site, connect_thread if blocking else connect_loop)
    try:
        [(started, number, _)] = await session.ask(WHICH, ())
    finally:
        session.cut()
    site.identity = started, number
    return site.identity
