"""A database with the ledger in SQL, asked directly."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from dibs.model import Acquire, Command, Notification, Reply
from dibs.stores import port
from dibs.stores.postgres import ledger as sql
from dibs.stores.postgres import schema
from dibs.stores.postgres.connection import Wire
from dibs.testing import ManualClock
from tests.stores.differential import OTHER, OWN, Outcome

TOGETHER = sql.APPLY.text
CAREFULLY = """SELECT dibs.apply_carefully(dibs.decode($1::jsonb), dibs.lock_all(ARRAY(SELECT DISTINCT c.key
    FROM unnest(dibs.decode($1::jsonb)) AS c ORDER BY c.key), false), $2::text, $3::float8, $4::bigint)"""


class Database:
    """A connection that also receives the notifications of another client."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.add_notify_handler(self._hear)
        self.connection.execute(f"LISTEN {OTHER}".encode())
        self._heard: list[Notification] = []

    def _hear(self, notify: psycopg.Notify) -> None:
        [notification] = sql.notifications_in([notify.payload], notify.channel)
        self._heard.append(notification)

    def execute(self, sql: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(sql.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def _ask(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return psycopg.RawCursor(self.connection).execute(statement.encode(), values).fetchall()

    def apply(
        self, batch: Sequence[Command], time: ManualClock | None = None, statement: str = TOGETHER
    ) -> Outcome:
        now, stamp = (time.now(), time.stamp()) if time else (None, None)
        values = sql.parameters(batch, inbox=OWN, now=now, stamp=stamp)
        rows = self._ask(statement, values)
        replies, own = sql.read_answer(rows, batch, OWN)
        heard, self._heard = self._heard, []
        return list(replies), [*own, *heard]

    def apply_within(self, batch: Sequence[Command]) -> Sequence[Reply]:
        """The same in a transaction of the user's own, which has begun."""
        rows = self._ask(TOGETHER, sql.parameters(batch, inbox=None))
        return sql.read_answer(rows, batch, OWN)[0]

    def sweep(self, time: ManualClock) -> None:
        """A sweep, as if idle keys had been idle for long."""
        self.execute("UPDATE dibs.keys SET touched = 0")
        self.execute("SELECT dibs.sweep(100, %s, %s)", [time.now(), time.stamp()])
        assert self.execute("SELECT swept FROM dibs.meta") == [(b"",)]

    def empty(self) -> None:
        for table in ("keys", "entries", "fences"):
            self.execute(f"DELETE FROM dibs.{table}")
        self.execute("UPDATE dibs.meta SET floor = 0, swept = ''")

    def close(self) -> None:
        self.connection.close()


@contextmanager
def database(url: str, edit: Sequence[str] | None = None) -> Iterator[Database]:
    """A migrated database; `edit` plants an error in the migrations."""
    subject = Database(url)
    try:
        migrate(subject.connection, edit)
        yield subject
    finally:
        subject.close()


def migrate(connection: psycopg.Connection[Any], edit: Sequence[str] | None = None) -> list[int]:
    """Bring a database up to date; the numbers of what was new."""

    async def run(sql: str) -> list[tuple[Any, ...]]:
        if edit is not None:
            sql = sql.replace(edit[0], edit[1])
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    return [migration.number for migration in port.step(schema.upgrade(run))]


def take(key: bytes, lease: str = "id", **more: Any) -> Acquire:
    return Acquire(key, lease, "owner", more.pop("ttl", 30.0), **more)


async def say(backend: Any, command: Command) -> Reply:
    replies: Sequence[Reply] = await backend.apply([command])
    return replies[0]


def wire_of(backend: Any) -> Wire:
    """The connection that a backend asks on."""
    wire: Wire = backend._session.wire
    return wire


def admin(url: str) -> psycopg.Connection[Any]:
    """A plain connection, to look and to disturb."""
    return psycopg.connect(url, autocommit=True)
