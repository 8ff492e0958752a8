"""Commands that are part of a transaction of the caller's own.

A lease that is taken there stands when the transaction commits, and never was if it rolls back. Until
then the key's row stays locked: others are answered `Failed("busy")`, and needn't wait for it. So is
whoever renews it: the ttl has to be longer than the transaction.
"""

from collections.abc import Sequence
from inspect import isawaitable
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from leasehold.backends.postgres import applying, script
from leasehold.backends.postgres.site import Site
from leasehold.backends.postgres.statements import Rows, Statement, Values
from leasehold.backends.postgres.trouble import cut_off, error_of, explain
from leasehold.model import Command, Page, Reply, Wakeup


class WithinBackend:
    """Applies in the caller's connection and transaction, blocking or async as the connection is.

    It neither opens nor closes that connection, and hears nothing: it has no inbox. An error of the
    database ends the caller's transaction, as any statement's would.
    """

    inbox = ""

    def __init__(
        self, site: Site, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
    ) -> None:
        self._site = site
        self._connection = connection

    async def open(self, *, listen: bool = True) -> None:
        """The caller has."""

    async def close(self) -> None:
        """The caller will."""

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        if not commands:
            return []
        now, stamp = self._site.time()
        values = script.parameters(commands, inbox=self.inbox, now=now, stamp=stamp)
        replies, _ = script.read_answer(await self._ask(applying.APPLY, values), commands)
        return replies

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        now, stamp = self._site.time()
        values = script.scan_parameters(prefix, cursor, limit, now, stamp)
        return script.read_page(await self._ask(applying.SCAN, values))

    async def _ask(self, statement: Statement, values: Values) -> Rows:
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
            if error.sqlstate is None:
                raise cut_off(error, self._site.place) from error
            raise explain(error_of(error), self._site.place) from error
        return rows

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        return ()

    def nudge(self) -> None:
        """Nobody waits."""

    def after_fork(self) -> None:
        """The connection is the caller's."""


async def _now(result: Any) -> Any:
    """What a call gave: awaited in the one world, as it is in the other."""
    return await result if isawaitable(result) else result
