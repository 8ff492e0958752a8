"""Records in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.server.records.bounds import (
    FORMAT,
    check_address,
    check_kind,
    check_page,
    check_value,
    entry_of,
    record_of,
    revision_of,
    unreadable,
)
from dibs.server.records.port import Conflict, Entry, Record
from dibs.stores.postgres.errors import (
    SqlError,
    cut_off,
    error_of,
    explain,
    is_of_the_connection,
    is_worth_another_try,
    no_answer,
    refused,
)
from dibs.stores.postgres.url import Address

PATIENCE = 10.0
"""Seconds that the server has for an answer."""

TRIES = 5
"""So often a statement is begun anew that lost against another transaction."""

type Db = psycopg.AsyncConnection[tuple[Any, ...]]


class PostgresRecords:
    """One connection, made anew when it breaks; each change is one statement.

    One row counts revisions and lines. Whoever changes anything locks it, so what is read to be newer was
    committed later, and a reader who remembers a number misses nothing.
    """

    def __init__(self, url: str) -> None:
        self._address = Address(url)
        self._db: Db | None = None
        self._turn = asyncio.Lock()

    # -- a life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._turn:
            await self._connected()

    async def close(self) -> None:
        async with self._turn:
            await self._disconnect()

    async def worries(self) -> Sequence[str]:
        return ()

    async def _connected(self) -> Db:
        if self._db is not None and not self._db.closed:
            return self._db
        try:
            db = self._db = await psycopg.AsyncConnection.connect(
                self._address.conninfo, autocommit=True, prepare_threshold=None
            )
        except (psycopg.Error, OSError) as error:
            raise refused(error, self._place) from error
        async with self._guarded():
            await self._settle(db)
        return db

    async def _settle(self, db: Db) -> None:
        """Find or make the tables."""
        if not (await _rows(db, IS_THERE))[0][0]:
            await self._make_tables(db)
        _first_of(await _rows(db, STATE), self._place)

    async def _make_tables(self, db: Db) -> None:
        await db.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        try:
            async with db.transaction():
                await _rows(db, LOCK)
                if not (await _rows(db, IS_THERE))[0][0]:  # somebody else was first
                    await db.execute(TABLES)
                    await db.execute(FIRST, (FORMAT,))
        except psycopg.errors.InsufficientPrivilege as error:
            raise Forbidden(
                f"the service's tables are missing from schema dibs of {self._place}, and this role "
                f"may not make them ({error.diag.message_primary}): have somebody who may run "
                f"`dibs keys list --records postgresql://OWNER@{self._place}`, and grant SELECT, "
                "INSERT, UPDATE, DELETE on dibs.service_records, _log and _state to this role"
            ) from error

    async def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await db.close()

    @property
    def _place(self) -> str:
        return self._address.place

    # -- asking -------------------------------------------------------------------------------------

    async def _read(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Rows; asked for once more over another connection if the first one broke."""
        async with self._turn:
            try:
                return await self._ask(statement, values)
            except BackendUnavailable:
                if self._db is not None:
                    raise
            return await self._ask(statement, values)

    async def _write(self, statement: LiteralString, *values: object) -> int:
        """The number that a change answers with."""
        async with self._turn:
            return int((await self._ask(statement, values))[0][0])

    async def _ask(
        self, statement: LiteralString, values: tuple[object, ...]
    ) -> list[tuple[Any, ...]]:
        db = await self._connected()
        for _ in range(TRIES - 1):
            try:
                async with self._guarded(lost=True):
                    return await _rows(db, statement, values)
            except _Lost:
                continue
        async with self._guarded():
            return await _rows(db, statement, values)

    @asynccontextmanager
    async def _guarded(self, *, lost: bool = False) -> AsyncIterator[None]:
        """Have callers see our errors; whatever leaves the connection in doubt ends it."""
        try:
            async with asyncio.timeout(PATIENCE):
                yield
        except TimeoutError as error:
            await self._disconnect()
            raise no_answer(self._place, PATIENCE) from error
        except psycopg.Error as error:
            found = error_of(error)
            if lost and is_worth_another_try(found):
                raise _Lost from error
            if self._db is None or self._db.closed or is_of_the_connection(found):
                await self._disconnect()
                raise cut_off(error, self._place) from error
            raise self._meaning(found) from error
        except BaseException as error:
            await self._disconnect()
            if isinstance(error, OSError) and not isinstance(error, DibsError):
                raise cut_off(error, self._place) from error
            raise

    def _meaning(self, error: SqlError) -> DibsError:
        if error.state in ("42P01", "42703", "42804"):
            return unreadable(self._place, str(error))
        return explain(error, self._place)

    # -- documents ----------------------------------------------------------------------------------

    async def revision(self) -> int:
        return _first_of(await self._read(STATE), self._place)

    async def get(self, kind: str, name: str) -> Record | None:
        check_address(kind, name)
        rows = await self._read(GET, kind, name)
        return record_of(rows[0], self._place) if rows else None

    async def all(self, kind: str) -> Sequence[Record]:
        check_kind(kind)
        return [record_of(row, self._place) for row in await self._read(ALL, kind)]

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        check_address(kind, name)
        check_value(value)
        if expected:
            done = await self._write(CHANGE, value, kind, name, expected)
        else:
            done = await self._write(MAKE, value, kind, name)
        if not done:
            raise Conflict(f"{kind} {name!r}")
        return Record(kind, name, value, expected + 1)

    async def delete(self, kind: str, name: str, expected: int) -> None:
        check_address(kind, name)
        if expected:
            done = bool(await self._write(REMOVE, kind, name, expected))
        else:
            done = not await self._read(GET, kind, name)
        if not done:
            raise Conflict(f"{kind} {name!r}")

    # -- the log ------------------------------------------------------------------------------------

    async def append(self, value: bytes) -> int:
        check_value(value)
        return await self._write(APPEND, value)

    async def log(self, before: int | None, limit: int) -> Sequence[Entry]:
        check_page(before, limit)
        end = (1 << 62) if before is None else before
        return [entry_of(row, self._place) for row in await self._read(LOG, end, limit)]

    async def oldest(self, limit: int) -> Sequence[Entry]:
        check_page(None, limit)
        return [entry_of(row, self._place) for row in await self._read(OLDEST, limit)]

    async def forget(self, lines: Sequence[Entry]) -> None:
        await self._write(FORGET, [each.number for each in lines])


class _Lost(Exception):
    """Nothing was done, as another transaction was in the way."""


async def _rows(
    db: Db, statement: LiteralString, values: tuple[object, ...] = ()
) -> list[tuple[Any, ...]]:
    return await (await db.execute(statement, values, prepare=False)).fetchall()


def _first_of(rows: Sequence[tuple[Any, ...]], place: str) -> int:
    return revision_of(rows[0] if rows else None, place)


LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(5497853149204)"
"""Who makes the tables waits here for who does it already; the end of the transaction unlocks it."""

IS_THERE = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS schema
    ON schema.oid = class.relnamespace
    WHERE schema.nspname = 'dibs' AND class.relname = 'service_state')"""
"""`to_regclass` would answer from a cache that the wait for the lock does not bring up to date."""

TABLES = """
DO $$
BEGIN  -- IF NOT EXISTS would ask for the right to create schemas also where there is nothing to create
    IF to_regnamespace('dibs') IS NULL THEN
        CREATE SCHEMA dibs;
    END IF;
END $$;

CREATE TABLE dibs.service_records (
    kind text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, value bytea NOT NULL,
    version bigint NOT NULL, PRIMARY KEY (kind, name)
);
CREATE TABLE dibs.service_log (number bigint PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE dibs.service_state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL, revision bigint NOT NULL DEFAULT 0, lines bigint NOT NULL DEFAULT 0
);

CREATE FUNCTION dibs.service_log_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log of dibs is only added to';
END $$;
CREATE TRIGGER stays BEFORE UPDATE OR TRUNCATE ON dibs.service_log
    FOR EACH STATEMENT EXECUTE FUNCTION dibs.service_log_stays();
"""

FIRST = "INSERT INTO dibs.service_state (format) VALUES (%s)"

STATE = "SELECT format, revision FROM dibs.service_state"

GET = """
SELECT kind, name, value, version FROM dibs.service_records WHERE kind = %s AND name = %s"""

ALL = """
SELECT kind, name, value, version FROM dibs.service_records WHERE kind = %s ORDER BY name"""

_RISEN = """, risen AS (
    UPDATE dibs.service_state SET revision = revision + 1 WHERE EXISTS (SELECT FROM done))
SELECT count(*) FROM done"""

MAKE = f"""
WITH done AS (
    INSERT INTO dibs.service_records (value, kind, name, version) VALUES (%s, %s, %s, 1)
    ON CONFLICT DO NOTHING RETURNING 1){_RISEN}"""  # noqa: S608

CHANGE = f"""
WITH done AS (
    UPDATE dibs.service_records SET value = %s, version = version + 1
    WHERE kind = %s AND name = %s AND version = %s RETURNING 1){_RISEN}"""  # noqa: S608

REMOVE = f"""
WITH done AS (
    DELETE FROM dibs.service_records
    WHERE kind = %s AND name = %s AND version = %s RETURNING 1){_RISEN}"""  # noqa: S608

APPEND = """
WITH next AS (UPDATE dibs.service_state SET lines = lines + 1 RETURNING lines)
INSERT INTO dibs.service_log SELECT lines, %s FROM next RETURNING number"""

OLDEST = "SELECT number, value FROM dibs.service_log ORDER BY number LIMIT %s"

FORGET = """
WITH gone AS (DELETE FROM dibs.service_log WHERE number = ANY(%s) RETURNING 1) SELECT count(*) FROM gone"""

LOG = """
SELECT number, value FROM dibs.service_log WHERE number < %s ORDER BY number DESC LIMIT %s"""
