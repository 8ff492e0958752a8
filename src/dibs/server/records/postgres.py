"""Records in PostgreSQL."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.server.records.port import FORMAT, Records, unreadable
from dibs.server.records.sql import REVISION, SqlRecords, SqlRow, read_revision
from dibs.stores.postgres.errors import (
    cut_off,
    error_of,
    explain,
    is_of_the_connection,
    no_answer,
    refused,
)
from dibs.stores.postgres.url import Address

TIMEOUT = 10.0
"""Seconds in which the server must answer."""

TRIES = 5
"""Tries of a statement that fails because of a concurrent transaction."""

NAMES = {
    "state": "dibs.service_state",
    "records": "dibs.service_records",
    "log": "dibs.service_log",
}

type Connection = psycopg.AsyncConnection[SqlRow]


def postgres_records(url: str) -> Records:
    """Records in the database of a URL. Raises `NotConfigured`."""
    return SqlRecords(PostgresDriver(url))


class PostgresDriver:
    """See `SqlDriver`. One connection, which is made again when it breaks.

    Each change is one statement. So a server that hangs between two statements never keeps a row locked,
    and a transaction pooler can be in front of the database.
    """

    def __init__(self, url: str) -> None:
        self._address = Address(url)
        self._db: Connection | None = None
        self._turn = asyncio.Lock()

    @property
    def place(self) -> str:
        return self._address.place

    async def open(self) -> None:
        async with self._turn:
            await self._connected()

    async def close(self) -> None:
        async with self._turn:
            await self._disconnect()

    async def run(self, statement: str, *values: object) -> Sequence[SqlRow]:
        async with self._turn:
            try:
                return await self._execute(statement, values)
            except BackendUnavailable:
                if self._db is not None:  # the connection is well
                    raise
            return await self._execute(statement, values)

    async def change(self, statement: str, *values: object) -> bool:
        return await self._execute_once(CHANGE.replace("{change}", statement), values) == 1

    async def append(self, value: bytes) -> int:
        return await self._execute_once(APPEND, (value,))

    async def _execute_once(self, statement: str, values: tuple[object, ...]) -> int:
        """The number that a statement returns which must not be repeated."""
        async with self._turn:
            return int((await self._execute(statement, values))[0][0])

    async def _execute(self, statement: str, values: tuple[object, ...]) -> Sequence[SqlRow]:
        db = await self._connected()
        async with self._guarded():
            for _ in range(TRIES - 1):
                try:
                    return await _rows(db, statement, values)
                except (SerializationFailure, DeadlockDetected):  # nothing was changed
                    continue
            return await _rows(db, statement, values)

    # -- the connection -----------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        if self._db is not None and not self._db.closed:
            return self._db
        try:
            db = self._db = await psycopg.AsyncConnection.connect(
                self._address.conninfo, autocommit=True, prepare_threshold=None
            )
        except (psycopg.Error, OSError) as error:
            raise refused(error, self.place) from error
        async with self._guarded():
            if not await _has_tables(db):
                await self._make_tables(db)
            read_revision(await _rows(db, REVISION), self.place)
        return db

    async def _make_tables(self, db: Connection) -> None:
        await db.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        try:
            async with db.transaction():
                await db.execute(LOCK)
                if not await _has_tables(db):  # otherwise another server was faster
                    await db.execute(TABLES)
                    await db.execute(FIRST, (FORMAT,))
        except psycopg.errors.InsufficientPrivilege as error:
            raise Forbidden(
                f"the service's tables are missing from schema dibs of {self.place}, and this role "
                f"cannot make them ({error.diag.message_primary}): let a role with more rights run "
                f"`dibs keys list --records postgresql://OWNER@{self.place}`, and grant SELECT, "
                "INSERT, UPDATE, DELETE on dibs.service_records, _log and _state to this role"
            ) from error

    async def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await db.close()

    @asynccontextmanager
    async def _guarded(self) -> AsyncGenerator[None]:
        """Raise errors of Dibs. Close the connection unless it is certainly well."""
        try:
            async with asyncio.timeout(TIMEOUT):
                yield
        except TimeoutError as error:
            await self._disconnect()
            raise no_answer(self.place, TIMEOUT) from error
        except psycopg.Error as error:
            found = error_of(error)
            if self._db is None or self._db.closed or is_of_the_connection(found):
                await self._disconnect()
                raise cut_off(error, self.place) from error
            if found.state in ("42P01", "42703", "42804"):  # a table or a column is missing
                raise unreadable(self.place, str(found)) from error
            raise explain(found, self.place) from error
        except BaseException as error:
            await self._disconnect()
            if isinstance(error, OSError) and not isinstance(error, DibsError):
                raise cut_off(error, self.place) from error
            raise


async def _has_tables(db: Connection) -> bool:
    return bool(await _rows(db, HAS_TABLES))


async def _rows(
    db: Connection, statement: str, values: tuple[object, ...] = ()
) -> Sequence[SqlRow]:
    text = statement.format(**NAMES).replace("?", "%s").encode()
    cursor = await db.execute(text, values, prepare=False)  # a pooler can change the connection
    return await cursor.fetchall() if cursor.description else ()


LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(5497853149204)"
"""Held until the end of the transaction, so that one server makes the tables."""

HAS_TABLES = """
SELECT 1 FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS schema
ON schema.oid = class.relnamespace
WHERE schema.nspname = 'dibs' AND class.relname = 'service_state'"""
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

CHANGE = """
WITH changed AS ({change} RETURNING 1), risen AS (
    UPDATE {state} SET revision = revision + 1 WHERE EXISTS (SELECT FROM changed))
SELECT count(*) FROM changed"""

APPEND = """
WITH next AS (UPDATE {state} SET lines = lines + 1 RETURNING lines)
INSERT INTO {log} SELECT lines, ? FROM next RETURNING number"""
