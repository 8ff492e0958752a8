"""A database with the ledger in SQL, asked directly."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
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
    """A connection that also receives the notifications of another client.

    It applies a batch "together", its commands "one by one", or "carefully", as after a failure.
    """

    omits_passing_heads = False
    sweeps = True

    def __init__(self, url: str, manner: str = "together") -> None:
        self._manner = manner
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

    def apply(self, batch: Sequence[Command], time: ManualClock | None = None) -> Outcome:
        if self._manner == "one by one" and len(batch) > 1:
            outcomes = [self.apply([command], time) for command in batch]
            return [r for rs, _ in outcomes for r in rs], [n for _, ns in outcomes for n in ns]
        statement = CAREFULLY if self._manner == "carefully" else TOGETHER
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

    def sweep(self, time: ManualClock, keys: Sequence[bytes]) -> None:
        """A sweep, as if idle keys had been idle for long."""
        self.execute("UPDATE dibs.keys SET touched = 0")
        self.execute("SELECT dibs.sweep(100, %s, %s)", [time.now(), time.stamp()])
        assert self.execute("SELECT swept FROM dibs.meta") == [(b"",)]

    def check(self) -> None:
        """The row of a key knows of other rows how many they are, and that none ends earlier."""
        wrong = self.execute(
            """SELECT k.key FROM dibs.keys AS k, LATERAL (SELECT
                    count(*) FILTER (WHERE e.what = 'hold') AS holds,
                    count(*) FILTER (WHERE e.what = 'waiter') AS waiters,
                    count(*) FILTER (WHERE e.what = 'tombstone') AS tombstones,
                    coalesce(sum(e.units) FILTER (WHERE e.what = 'hold'), 0) AS units,
                    min(e.expires) AS due
                FROM dibs.entries AS e WHERE e.key = k.key) AS found
            WHERE (k.holds, k.waiting, k.tombstones)
                    <> (found.holds, found.waiters, found.tombstones)
                OR k.used <> found.units + coalesce((k.hold).units, 0)
                OR k.due > least((k.hold).expires, found.due)
                OR found.due IS NULL AND k.due <> coalesce((k.hold).expires, 'Infinity')"""
        )
        assert not wrong
        marked = self.execute(
            """SELECT k.key, (SELECT coalesce(array_agg(s ORDER BY s), '{}')
                    FROM generate_series(0, 1023) AS s WHERE get_bit(k.taken, s) = 1),
                (SELECT coalesce(array_agg(s ORDER BY s), '{}')
                    FROM dibs.first_to_end(k, 10000) AS h, unnest(h.slots) AS s)
            FROM dibs.keys AS k WHERE k.taken IS NOT NULL"""
        )
        for key, bits, slots in marked:
            assert bits == slots, key

    def empty(self) -> None:
        for table in ("keys", "entries", "fences"):
            self.execute(f"DELETE FROM dibs.{table}")
        self.execute("UPDATE dibs.meta SET floor = 0, swept = ''")

    def close(self) -> None:
        self.connection.close()


@contextmanager
def database(
    url: str, manner: str = "together", edit: Sequence[str] | None = None
) -> Iterator[Database]:
    """A migrated database; `edit` plants an error in the migrations."""
    with closing(Database(url, manner)) as subject:
        migrate(subject.connection, edit)
        yield subject


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
