"""The ledger in SQL: its clock, locks and sweeps, and rows that cannot be right."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dibs.core import timing
from dibs.core.names import fingerprint
from dibs.model import (
    MAX_HOLDERS,
    MAX_SLOTS,
    Acquire,
    Command,
    Failed,
    Gone,
    Granted,
    Inspect,
    Lost,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Reply,
    Revoke,
    Status,
    Unknown,
)
from dibs.stores.postgres import ledger
from tests.stores.differential import OTHER, Time
from tests.stores.postgres.database import Database, database, take

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python


@pytest.fixture
def subject(postgres_url: str) -> Iterator[Database]:
    with database(postgres_url) as found:
        yield found


def test_the_constants_are_those_of_the_ledger(subject: Database) -> None:
    [found] = subject.execute(
        "SELECT dibs.max_holders(), dibs.max_slots(), dibs.tombstone_ttl(), dibs.counted_positions(),"
        " dibs.heartbeat_positions(), dibs.examined_positions(), dibs.claim_timeout(60),"
        " dibs.claim_timeout(2)"
    )
    assert found == (
        MAX_HOLDERS,
        MAX_SLOTS,
        timing.TOMBSTONE_TTL,
        timing.COUNTED_POSITIONS,
        timing.HEARTBEAT_POSITIONS,
        timing.EXAMINED_POSITIONS,
        timing.claim_timeout(60),
        timing.claim_timeout(2),
    )


@given(
    last=st.integers(0, 2**53),
    stamp=st.one_of(st.integers(-10, 2**62), st.just(timing.END_OF_TIME)),
    floor=st.integers(0, 2**53 - 1),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokens_are_those_of_the_ledger(
    subject: Database, last: int, stamp: int, floor: int
) -> None:
    [(token,)] = subject.execute("SELECT dibs.next_token(%s, %s, %s)", [last, stamp, floor])
    assert token == timing.next_token(last, stamp, floor)


def test_time_is_the_servers_unless_it_is_told(subject: Database) -> None:
    subject.empty()
    [before] = subject.execute("SELECT date_part('epoch', clock_timestamp())")
    [granted], _ = subject.apply([Acquire(b"lock:t", "id", "o", 30.0)])
    [queued], _ = subject.apply([Acquire(b"lock:t", "w", "o", 30.0, queue=True)])
    [after] = subject.execute("SELECT date_part('epoch', clock_timestamp())")
    assert isinstance(granted, Granted)
    assert isinstance(queued, Queued)
    assert before[0] * 1e6 - 1 <= granted.token <= after[0] * 1e6 + 1
    assert before[0] <= queued.now <= after[0]


def test_a_session_whose_plans_are_old_reads_no_long_queue(subject: Database) -> None:
    """Plans made while the tables were empty must do when 5,000 wait: none reads all of them."""
    if subject.connection.info.server_version < 150000:
        pytest.skip("PostgreSQL 14 can't be told to count what was read by now")
    subject.empty()
    time = Time()
    subject.execute("ALTER TABLE dibs.entries SET (autovacuum_enabled = off)")
    subject.execute("VACUUM dibs.entries")
    subject.execute("ANALYZE dibs.keys, dibs.entries")
    for turn in range(10):
        queue_up(subject, time, f"early {turn}", 3)
        subject.apply([Release(b"q", f"early {turn} {n}", tombstone=5.0) for n in range(3)], time)
    time.advance(10.0)
    waiters = queue_up(subject, time, "waiter", 5000)
    subject.apply([Release(b"q", waiter, tombstone=60.0) for waiter in waiters[3000:]], time)
    before = rows_read(subject)
    for n in range(20):
        subject.apply([Release(b"q", waiters[n])], time)
        replies, _ = subject.apply(
            [Renew(b"q", waiters[n + 1], 30.0), Renew(b"q", waiters[n + 3], 30.0)], time
        )
        assert [type(reply) for reply in replies] == [Granted, Queued]
        [gone], _ = subject.apply([Acquire(b"q", waiters[4000 + n], "o", 30.0)], time)
        assert gone == Gone()
    assert rows_read(subject) - before < 20 * 300


def queue_up(subject: Database, time: Time, name: str, many: int) -> list[str]:
    """So many wait; the first of them holds, if nobody did."""
    ids = [f"{name} {n}" for n in range(many)]
    for at in range(0, many, 500):
        some = ids[at : at + 500]
        subject.apply(
            [Acquire(b"q", i, "o", 30.0, queue=True, waiter_ttl=60.0) for i in some], time
        )
    return ids


def rows_read(subject: Database) -> int:
    """How many rows of entries this database has read."""
    subject.execute("SELECT pg_stat_force_next_flush()")
    [(rows,)] = subject.execute(
        "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables"
        " WHERE relname = 'entries'"
    )
    return int(rows)


@pytest.fixture
def another(postgres_url: str, subject: Database) -> Iterator[Database]:
    found = Database(postgres_url)
    yield found
    found.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE dibs.keys SET waiting = 3 WHERE key = 'bad'",
        "UPDATE dibs.keys SET used = 1 WHERE key = 'bad'",
        "UPDATE dibs.keys SET used = 1, waiting = 1 WHERE key = 'bad'",
        "UPDATE dibs.keys SET last = 9223372036854775807 WHERE key = 'bad'",
    ],
)
def test_a_corrupt_row_fails_its_key_alone(subject: Database, damage: str) -> None:
    subject.apply([take(b"bad", "first"), Release(b"bad", "first")])
    subject.execute(damage)
    replies, _ = subject.apply([take(b"a"), take(b"bad"), take(b"z"), take(b"bad", "other")])
    assert [type(reply) for reply in replies] == [Granted, Failed, Granted, Failed]
    subject.execute("UPDATE dibs.keys SET used = 0, waiting = 0, last = 5 WHERE key = 'bad'")
    [reply], _ = subject.apply([take(b"bad")])
    assert isinstance(reply, Granted)


@pytest.mark.parametrize(
    "damage", ["hold.state = 'nonsense'", "hold.owner = NULL", "used = -1", "hold.id = NULL"]
)
def test_a_hold_that_makes_no_sense_fails_its_key_alone(subject: Database, damage: str) -> None:
    subject.apply([take(b"bad")])
    subject.execute(f"UPDATE dibs.keys SET {damage}")
    for batch in ([take(b"bad", "other")], [take(b"bad", "other"), take(b"a")]):
        replies, _ = subject.apply(batch)
        assert isinstance(replies[0], Failed)
        assert replies[0].reason == "corrupt"
        assert all(isinstance(reply, Granted) for reply in replies[1:])


@pytest.mark.parametrize(
    "odd",
    [
        'a"b\\c\n\t\x01\x7f€🔒{}[],%s',
        "\0",
        "\x10",
        "\x10\0",
        "\\u0000",
        "\x100\x101\0\x10",
        "\x100",
        "\x100\\000\x101é\0",
        "'; DROP SCHEMA dibs CASCADE; -- {}\"\\%s%(a)s$1",
    ],
)
def test_a_text_of_any_kind_comes_back_as_it_was(subject: Database, odd: str) -> None:
    key = b"\x00\xff'\\"
    told = Acquire(key, odd, odd, 30.0, note=odd)
    replies, _ = subject.apply([told, Inspect(key), Revoke(key, None, odd), Renew(key, odd, 5.0)])
    granted, status, _, lost = replies
    assert isinstance(granted, Granted)
    assert isinstance(status, Status)
    assert (status.holders[0].owner, status.holders[0].note) == (odd, odd)
    assert status.holders[0].lease == fingerprint(odd)
    assert lost == Lost("revoked", odd)
    [released, again], _ = subject.apply([Release(key, odd), Release(key, odd)])
    assert (released, again) == (Released(), Unknown())


# ---- pushes -------------------------------------------------------------------------------------------


def test_a_notification_that_is_too_long_costs_only_itself(subject: Database) -> None:
    clock = Time()
    key = b"x" * 4000  # longer than any real one
    subject.apply([take(key), take(key, "next", queue=True, inbox=OTHER)], clock)
    [released], notifications = subject.apply([Release(key, "id")], clock)
    assert (released, notifications) == (Released(), [])
    [reply], _ = subject.apply([Renew(key, "next", 30.0)], clock)
    assert isinstance(reply, Granted)


def test_a_notification_carries_the_beginning_of_a_long_reason(subject: Database) -> None:
    clock = Time()
    subject.apply([take(b"a", inbox=OTHER)], clock)
    _, [notification] = subject.apply([Revoke(b"a", None, "\0" * 9000)], clock)
    assert (notification.event, notification.inbox) == ("revoked", OTHER)
    assert notification.detail == "\0" * 100, "a NUL is stored as two characters"
    [lost], _ = subject.apply([Renew(b"a", "id", 30.0)], clock)
    assert lost == Lost("revoked", "\0" * 9000)


def test_who_has_no_inbox_is_not_notified(subject: Database) -> None:
    """Neither by a client that has none: it would take the notification for its own."""
    clock = Time()
    subject.apply([take(b"a"), take(b"a", "w", queue=True)], clock)
    batch = [Release(b"a", "id")]
    values = ledger.parameters(batch, inbox="", now=clock.now(), stamp=clock.stamp())
    rows = subject.raw(ledger.APPLY.text, values)
    assert ledger.read_answer(rows, batch, "") == ([Released()], [])


def test_an_inbox_that_is_no_channel_costs_only_its_push(subject: Database) -> None:
    clock = Time()
    subject.apply([take(b"a"), take(b"a", "w", queue=True, inbox="x" * 64)], clock)
    [released], notifications = subject.apply([Release(b"a", "id")], clock)
    assert released == Released()
    assert notifications == []


@pytest.mark.parametrize(
    "payload", ["", "{}", "[]", "nonsense", '["zz",1,2,3,4,5,6,7]', "[" * 5000]
)
def test_what_others_send_is_no_push(payload: str) -> None:
    assert ledger.notifications_in([payload], "here") == []


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
    """Whoever waited for a row knows what time it is then: it never judges by an older time."""
    subject.apply([take(b"a", "held", ttl=0.1)])
    with another.connection.transaction():
        another.apply([Renew(b"a", "held", 0.1)])
        waiter = threading.Thread(target=lambda: found.extend(subject.apply([take(b"a")])[0]))
        found: list[Reply] = []
        waiter.start()
        time.sleep(0.15)
    waiter.join()
    assert isinstance(found[0], Granted), "the hold has ended while we waited"


@contextmanager
def threads(*targets: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Runs these beside the block; what they raise is gathered."""
    errors: list[BaseException] = []

    def run(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(target,)) for target in targets]
    for thread in started:
        thread.start()
    try:
        yield errors
    finally:
        for thread in started:
            thread.join()


def cycle(url: str, keys: Sequence[bytes], name: str, seconds: float, counts: list[int]) -> None:
    """Take and release all of these in batches, and be refused what the other has."""
    mine = Database(url)
    try:
        end = time.monotonic() + seconds
        turn = 0
        while time.monotonic() < end:
            turn += 1
            ids = [f"{name} {turn} {key!r}" for key in keys]
            asked: list[Command] = [
                take(key, i, ttl=600.0) for key, i in zip(keys, ids, strict=True)
            ]
            given: list[Command] = [Release(key, i) for key, i in zip(keys, ids, strict=True)]
            taken, _ = mine.apply(asked)
            released, _ = mine.apply(given)
            for one, other in zip(taken, released, strict=True):
                assert isinstance(one, Granted | Refused), one
                assert (type(other) is Released) == (type(one) is Granted)
            counts.append(sum(isinstance(reply, Granted) for reply in taken))
    finally:
        mine.close()


def test_batches_in_opposite_orders_never_deadlock(subject: Database, postgres_url: str) -> None:
    """Also where the keys are new, and where they are swept away all the time."""
    keys = [b"lock:%d" % n for n in range(64)]
    counts: list[int] = []
    seconds = 3.0
    with threads(
        lambda: cycle(postgres_url, keys, "up", seconds, counts),
        lambda: cycle(postgres_url, keys[::-1], "down", seconds, counts),
        lambda: cycle(postgres_url, keys[10:40], "some", seconds, counts),
    ) as errors:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(psycopg.errors.LockNotAvailable):  # a sweep that meets a lock is left
                subject.execute("SELECT dibs.sweep(100, date_part('epoch', now()) + 61)")
    assert errors == []
    assert sum(counts) > 1000
    subject.execute("SELECT pg_stat_force_next_flush()") if server_version(subject) >= 15 else None
    [(deadlocks,)] = subject.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    assert deadlocks == 0


def server_version(subject: Database) -> int:
    return subject.connection.info.server_version // 10000


def test_idle_keys_are_thrown_out_a_part_at_a_time(subject: Database) -> None:
    clock = Time()
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
    clock.wall -= 3_600_000_000
    [reply], _ = subject.apply([take(b"k5")], clock)
    assert isinstance(reply, Granted)
    assert reply.token > clock.stamp() + 3_600_000_000, "tokens still rise"


def test_a_sweep_hands_over_what_has_expired(subject: Database) -> None:
    clock = Time()
    subject.apply([take(b"a", "dead"), take(b"a", "next", queue=True, inbox=OTHER)], clock)
    clock.advance(29)
    subject.apply([Renew(b"a", "next", 30.0)], clock)
    clock.advance(2)
    subject.execute("SELECT dibs.sweep(10, %s, %s)", [clock.now(), clock.stamp()])
    _, notifications = subject.apply([])
    assert [(notification.inbox, notification.event) for notification in notifications] == [
        (OTHER, "granted")
    ]
