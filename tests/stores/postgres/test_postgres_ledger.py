"""The ledger in SQL: its clock, locks and sweeps, and rows that cannot be right."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from dibs.model import (
    Command,
    Failed,
    Granted,
    Lost,
    Refused,
    Release,
    Released,
    Renew,
    Reply,
    Revoke,
)
from dibs.stores.postgres import ledger
from dibs.testing import ManualClock
from tests.core.plans import VECTORS
from tests.servers.binaries import postgres_programs, postgres_versions
from tests.servers.fixtures import NO_POWER_CUT
from tests.servers.postgres import PostgresServer
from tests.stores.differential import OTHER, PLANS, follow
from tests.stores.postgres.database import Database, database, take
from tests.stores.sides import waiting

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python


@pytest.fixture
def subject(postgres_url: str) -> Iterator[Database]:
    with database(postgres_url) as found:
        yield found


@pytest.fixture
def another(postgres_url: str, subject: Database) -> Iterator[Database]:
    found = Database(postgres_url)
    yield found
    found.close()


# ---- odd rows, texts and notifications ------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        *("waiting = 3", "used = 1", "used = 1, waiting = 1", "last = 9223372036854775807"),
        *("hold.state = 'nonsense'", "hold.owner = NULL", "used = -1", "hold.id = NULL"),
    ],
)
def test_a_corrupt_row_fails_its_key_alone(subject: Database, damage: str) -> None:
    subject.apply([take(b"bad", "first")])
    if "hold" not in damage and damage != "used = -1":
        subject.apply([Release(b"bad", "first")])
    subject.execute(f"UPDATE dibs.keys SET {damage}")
    [alone], _ = subject.apply([take(b"bad", "other")])
    replies, _ = subject.apply([take(b"a"), take(b"bad", "other"), take(b"z")])
    assert [type(reply) for reply in replies] == [Granted, Failed, Granted]
    for reply in (alone, replies[1]):
        assert isinstance(reply, Failed)
        assert reply.reason == "corrupt" or "used up" in reply.detail


def test_a_notification_carries_the_beginning_of_a_long_reason(subject: Database) -> None:
    clock = ManualClock()
    subject.apply([take(b"a", inbox=OTHER)], clock)
    _, [notification] = subject.apply([Revoke(b"a", None, "\0" * 9000)], clock)
    assert (notification.event, notification.inbox) == ("revoked", OTHER)
    assert notification.detail == "\0" * 100, "a NUL is stored as two characters"
    [lost], _ = subject.apply([Renew(b"a", "id", 30.0)], clock)
    assert lost == Lost("revoked", "\0" * 9000)


@pytest.mark.parametrize(
    "payload", ["", "{}", "[]", "nonsense", '["zz",1,2,3,4,5,6,7]', "[" * 5000]
)
def test_what_others_send_is_no_notification(payload: str) -> None:
    assert ledger.notifications_in([payload], "here") == []


# ---- locks and the clock --------------------------------------------------------------------------


@pytest.mark.parametrize("is_new", [True, False])
def test_a_key_that_a_transaction_keeps_is_busy_alone(
    subject: Database, another: Database, is_new: bool
) -> None:
    if not is_new:
        subject.apply([take(b"b", "before"), Release(b"b", "before")])
    with another.connection.transaction():
        another.apply_within([take(b"b", "joined")])
        began = time.monotonic()
        replies, _ = subject.apply([take(b"a"), take(b"b"), take(b"c"), Release(b"a", "id")])
        assert time.monotonic() - began < 2
        assert [type(reply) for reply in replies] == [Granted, Failed, Granted, Released]
        assert isinstance(replies[1], Failed)
        assert replies[1].reason == "busy"
    [reply], _ = subject.apply([take(b"b")])
    assert isinstance(reply, Refused)
    assert reply.reason == "held"


def test_the_clock_is_read_after_the_wait_for_the_lock(
    subject: Database, another: Database
) -> None:
    """A statement that waited for a row never judges by the time before its wait."""
    subject.apply([take(b"a", "held", ttl=0.1)])
    with another.connection.transaction():
        another.apply([Renew(b"a", "held", 0.1)])
        waiter = threading.Thread(target=lambda: found.extend(subject.apply([take(b"a")])[0]))
        found: list[Reply] = []
        waiter.start()
        time.sleep(0.15)
    waiter.join()
    assert isinstance(found[0], Granted), "the hold has ended while we waited"


def cycle(url: str, keys: Sequence[bytes], name: str, end: float) -> int:
    """Acquire and release all of these in batches, and be refused what the others have."""
    mine, grants, turn = Database(url), 0, 0
    while time.monotonic() < end:
        turn += 1
        ids = [f"{name} {turn} {key!r}" for key in keys]
        acquires: list[Command] = [take(k, i, ttl=600.0) for k, i in zip(keys, ids, strict=True)]
        releases: list[Command] = [Release(k, i) for k, i in zip(keys, ids, strict=True)]
        acquired, _ = mine.apply(acquires)
        released, _ = mine.apply(releases)
        for one, other in zip(acquired, released, strict=True):
            assert isinstance(one, Granted | Refused), one
            assert isinstance(other, Released) == isinstance(one, Granted)
        grants += sum(isinstance(reply, Granted) for reply in acquired)
    mine.close()
    return grants


def test_batches_in_opposite_orders_never_deadlock(subject: Database, postgres_url: str) -> None:
    """Also where the keys are new, and where they are swept away all the time."""
    keys = [b"lock:%d" % n for n in range(64)]
    end = time.monotonic() + 1.2
    with ThreadPoolExecutor(3) as threads:
        started = [
            threads.submit(cycle, postgres_url, some, name, end)
            for name, some in (("up", keys), ("down", keys[::-1]), ("some", keys[10:40]))
        ]
        while time.monotonic() < end:
            with suppress(psycopg.errors.LockNotAvailable):  # a sweep that meets a lock is left
                subject.execute("SELECT dibs.sweep(100, date_part('epoch', now()) + 61)")
        assert sum(each.result() for each in started) > 50
    if subject.connection.info.server_version >= 150000:
        subject.execute("SELECT pg_stat_force_next_flush()")
    [(deadlocks,)] = subject.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    assert deadlocks == 0


def test_idle_keys_are_thrown_out_a_part_at_a_time(subject: Database) -> None:
    clock = ManualClock()
    keys = [b"k%d" % n for n in range(10)]
    subject.apply([take(key) for key in keys], clock)
    subject.apply([Release(key, "id") for key in keys[2:]], clock)
    sweep = "SELECT dibs.sweep(4, %s, %s)"
    assert subject.execute(sweep, [clock.now() + 50, clock.stamp()]) == [(0,)], "not idle for long"
    at = [70, 70, 70, 140, 140, 140]
    rounds = [subject.execute(sweep, [clock.now() + s, clock.stamp()])[0][0] for s in at]
    assert sum(rounds[:3]) == 8
    assert sum(rounds[3:]) == 2, "what had expired was settled, and goes a minute later"
    assert subject.execute("SELECT key FROM dibs.keys") == []
    clock.step_stamp(-3600.0)
    [reply], _ = subject.apply([take(b"k5")], clock)
    assert isinstance(reply, Granted)
    assert reply.token > clock.stamp() + 3_600_000_000, "tokens still rise"


# ---- the guard -----------------------------------------------------------------------------------


def guard(database: Database, token: int, key: str | bytes = "order:42", slot: int = 0) -> None:
    database.execute("SELECT dibs.guard(%s, %s, %s)", [key, token, slot])


def test_a_write_with_an_old_token_is_undone(subject: Database) -> None:
    subject.execute("CREATE TABLE account (balance integer)")
    for token in (5, 5, 9, 1_700_000_000_000_000):
        guard(subject, token)
    guard(subject, 1, slot=1)
    guard(subject, 1, "order:43")
    with pytest.raises(psycopg.Error, match="order:42 is no longer yours") as raised:
        with subject.connection.transaction():
            subject.execute("INSERT INTO account VALUES (1)")
            guard(subject, 9)
    assert raised.value.sqlstate == "ZDF01"
    assert subject.execute("SELECT * FROM account") == []


@pytest.mark.parametrize("second", [8, 9])
def test_others_wait_until_the_guarded_transaction_ends(
    subject: Database, another: Database, second: int
) -> None:
    """Also with the same token: a newer one could else write first, and be overwritten."""
    guard(subject, 8)
    another.execute("SET lock_timeout = '50ms'")
    with subject.connection.transaction():
        guard(subject, 8)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            guard(another, second)
    guard(another, second)


# ---- versions ------------------------------------------------------------------------------------

OTHERS = [
    version for version in postgres_versions() if version != str(postgres_programs()[0].version[0])
]
"""All but the one on which everything runs. Only `make torture` tests those between oldest and newest."""


@pytest.mark.parametrize(
    "version",
    [pytest.param(each, marks=pytest.mark.long if each in OTHERS[1:-1] else ()) for each in OTHERS],
)
def test_other_versions_answer_as_python_and_notify(version: str, tmp_path: Path) -> None:
    with PostgresServer(tmp_path, version=version, options=NO_POWER_CUT) as server:
        with waiting(server.new_database()):
            """It is notified."""
        for manner in ("together", "one by one"):
            with database(server.new_database(), manner) as found:
                for plan in (*VECTORS[:8], *PLANS):
                    follow(plan, found)
