"""The ledger in memory and the ledger in a database, told the same."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import psycopg

from dibs.model import Acquire, Command, Failed, Inspect, Notification, Reply
from dibs.stores import port
from dibs.stores.postgres import ledger as sql
from dibs.stores.postgres import schema
from tests.stores.ledger_reference import Outcome, Reference, Time, plain

OWN, OTHER = "here", "there"
"""The inbox of the client that asks, and that of another one."""

TOGETHER = sql.APPLY.text
CAREFULLY = """SELECT dibs.apply_carefully(dibs.decode($1::jsonb), dibs.lock_all(ARRAY(SELECT DISTINCT c.key
    FROM unnest(dibs.decode($1::jsonb)) AS c ORDER BY c.key), false), $2::text, $3::float8, $4::bigint)"""
MANNERS = ("together", "one by one", "carefully")


class Database:
    """The same in PostgreSQL. Its own connection also hears what is pushed to others."""

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

    def raw(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The same, of a statement with PostgreSQL's own placeholders."""
        return psycopg.RawCursor(self.connection).execute(sql.encode(), values).fetchall()

    def apply(
        self, batch: Sequence[Command], time: Time | None = None, statement: str = TOGETHER
    ) -> Outcome:
        now, stamp = (time.now(), time.stamp()) if time else (None, None)
        values = sql.parameters(batch, inbox=OWN, now=now, stamp=stamp)
        rows = self.raw(statement, values)
        replies, own = sql.read_answer(rows, batch, OWN)
        heard, self._heard = self._heard, []
        return list(replies), [*own, *heard]

    def apply_within(self, batch: Sequence[Command]) -> Sequence[Reply]:
        """The same in a transaction of the user's own, which has begun."""
        rows = self.raw(TOGETHER, sql.parameters(batch, inbox=None))
        return sql.read_answer(rows, batch, OWN)[0]

    def in_manner(self, manner: str, batch: Sequence[Command], time: Time) -> Outcome:
        if manner == "one by one":
            outcomes = [self.apply([command], time) for command in batch]
            return [r for rs, _ in outcomes for r in rs], [w for _, ws in outcomes for w in ws]
        return self.apply(batch, time, CAREFULLY if manner == "carefully" else TOGETHER)

    def sweep(self, time: Time) -> None:
        """A sweep, as if what is idle had been so for long."""
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
def database(url: str, edit: tuple[str, str] | None = None) -> Iterator[Database]:
    """A migrated database; `edit` plants an error in the migrations."""
    subject = Database(url)
    try:
        migrate(subject.connection, edit)
        yield subject
    finally:
        subject.close()


def migrate(connection: psycopg.Connection[Any], edit: tuple[str, str] | None = None) -> list[int]:
    """Bring a database up to date; the numbers of what was new."""

    async def run(sql: str) -> list[tuple[Any, ...]]:
        if edit is not None:
            sql = sql.replace(*edit)
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    return [migration.number for migration in port.step(schema.upgrade(run))]


# ---- following a plan with both -----------------------------------------------------------------------


def follow(plan: Sequence[Any], subject: Database, manner: str) -> None:
    """Whatever is asked of them, both give the same replies and send the same notifications."""
    time = Time()
    reference = Reference(time)
    subject.empty()
    for step in plan:
        if isinstance(step, float):
            time.pass_by(step)
        elif isinstance(step, int):
            time.wall += step
        elif step == "sweep":
            compare([Inspect(key) for key in reference.books], subject, manner, reference)
            subject.sweep(time)
            reference.sweep()
        else:
            compare(step, subject, manner, reference)
        check_counts(subject)


def compare(batch: Sequence[Command], subject: Database, manner: str, reference: Reference) -> None:
    expected, expected_notifications = reference.apply(batch)
    replies, notifications = subject.in_manner(manner, batch, reference.time)
    for command, reply, wanted in zip(batch, replies, expected, strict=True):
        if isinstance(wanted, Failed):  # some flaws are put in other words
            assert isinstance(reply, Failed), command
            assert reply.reason == wanted.reason, command
        else:
            assert is_near(plain(reply), plain(wanted)), f"{command}: {reply}, not {wanted}"
    sent = [each for each in expected_notifications if each.inbox]
    assert counted(notifications) == counted(sent), batch


def is_near(one: Any, other: Any) -> bool:
    """Equal, but for a float's last digits."""
    if isinstance(one, float):
        return isinstance(other, int | float) and abs(one - other) < 1e-6
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(is_near, one, other))
    if is_dataclass(one) and not isinstance(one, type):
        return type(one) is type(other) and all(
            is_near(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)
        )
    return bool(one == other)


def counted(notifications: Sequence[Notification]) -> Counter[Notification]:
    """As a multiset; of equal notifications in a transaction PostgreSQL sends only one."""
    rounded = (
        replace(w, granted_at=round(w.granted_at, 5), claim_timeout=round(w.claim_timeout, 5))
        for w in notifications
    )
    return Counter({w: n if w.inbox == OWN else 1 for w, n in Counter(rounded).items()})


def check_counts(subject: Database) -> None:
    """What the keys' rows tell of other rows is so: how many, and that none ends earlier."""
    wrong = subject.execute(
        """SELECT k.key FROM dibs.keys AS k, LATERAL (SELECT
                count(*) FILTER (WHERE e.what = 'hold') AS holds,
                count(*) FILTER (WHERE e.what = 'waiter') AS waiters,
                count(*) FILTER (WHERE e.what = 'tombstone') AS tombstones,
                coalesce(sum(e.units) FILTER (WHERE e.what = 'hold'), 0) AS units,
                min(e.expires) AS due
            FROM dibs.entries AS e WHERE e.key = k.key) AS found
        WHERE (k.holds, k.waiting, k.tombstones) <> (found.holds, found.waiters, found.tombstones)
            OR k.used <> found.units + coalesce((k.hold).units, 0)
            OR k.due > least((k.hold).expires, found.due)
            OR found.due IS NULL AND k.due <> coalesce((k.hold).expires, 'Infinity')"""
    )
    assert not wrong
    marked = subject.execute(
        """SELECT k.key, (SELECT coalesce(array_agg(s ORDER BY s), '{}')
                FROM generate_series(0, 1023) AS s WHERE get_bit(k.taken, s) = 1),
            (SELECT coalesce(array_agg(s ORDER BY s), '{}')
                FROM dibs.first_to_end(k, 10000) AS h, unnest(h.slots) AS s)
        FROM dibs.keys AS k WHERE k.taken IS NOT NULL"""
    )
    for key, bits, slots in marked:
        assert bits == slots, key


def take(key: bytes, lease: str = "id", **more: Any) -> Acquire:
    return Acquire(key, lease, "owner", more.pop("ttl", 30.0), **more)
