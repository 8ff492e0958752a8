"""The ledger in SQL answers as the one in Python does, whatever is asked of it and in whatever way."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dibs.core import timing
from dibs.core.names import fingerprint
from dibs.model import (
    MAX_HOLDERS,
    MAX_SLOTS,
    Acquire,
    Gone,
    Granted,
    Queued,
    Release,
    Renew,
    Resize,
)
from dibs.stores.postgres.ledger import escaped
from tests.sampling import EVERY, examples
from tests.servers.postgres import PostgresServer
from tests.stores.ledger_reference import NOON, VECTORS, Time
from tests.stores.postgres.ledger_plans import MORE_THAN_A_BATCH, ROWS
from tests.stores.postgres.ledger_subject import MANNERS, Database, database, follow
from tests.stores.redis.ledger_commands import PLANS as DRAWN

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python


@pytest.fixture(scope="module")
def subject(postgres_server: PostgresServer) -> Iterator[Database]:
    url = postgres_server.new_database()
    with database(url) as found:
        yield found
    postgres_server.drop_database(url)


@pytest.mark.parametrize("plan", ROWS)
@pytest.mark.parametrize("manner", MANNERS)
def test_a_plan_is_answered_alike(subject: Database, manner: str, plan: list[Any]) -> None:
    follow(plan, subject, manner)


@EVERY
@pytest.mark.parametrize("manner", MANNERS)
def test_the_vectors_are_answered_alike(subject: Database, manner: str, every: int) -> None:
    """The conformance suite replays them all over connections; here also command by command."""
    for plan in VECTORS[::every]:
        follow(plan, subject, manner)


@pytest.mark.parametrize("manner", MANNERS)
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(plan=DRAWN)
def test_any_plan_is_answered_alike(manner: str, subject: Database, plan: list[Any]) -> None:
    follow(plan, subject, manner)


def test_a_batch_ends_no_more_than_it_may(subject: Database) -> None:
    follow(MORE_THAN_A_BATCH, subject, "together")


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
@settings(deadline=None)
def test_tokens_are_those_of_the_ledger(
    subject: Database, last: int, stamp: int, floor: int
) -> None:
    [(token,)] = subject.execute("SELECT dibs.next_token(%s, %s, %s)", [last, stamp, floor])
    assert token == timing.next_token(last, stamp, floor)


def test_a_fingerprint_is_that_of_the_ledger(subject: Database) -> None:
    for lease in ("", "id1", "hö\u20ac", "\\", "\0", "\x10\0", "\x100\\000\x101é\0"):
        [(found,)] = subject.execute("SELECT dibs.fingerprint(%s)", [escaped(lease)])
        assert found == fingerprint(lease), lease


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


def test_a_hundred_slots_are_dealt_and_found_again(subject: Database) -> None:
    subject.empty()
    time = Time()

    def take(lease: str, units: int) -> Granted:
        [reply], _ = subject.apply([Acquire(b"s", lease, "o", 30.0, units, 100)], time)
        assert isinstance(reply, Granted)
        return reply

    assert take("a", 60).slots == tuple(range(60))
    assert take("b", 30).slots == tuple(range(60, 90))
    subject.apply([Release(b"s", "a"), Renew(b"s", "b", 30.0)], time)
    assert take("c", 70).slots == (*range(60), *range(90, 100))
    [shrunk], _ = subject.apply([Resize(b"s", "c", 2, 1)], time)
    assert shrunk == Granted(NOON + 2, (0, 1), 30.0)


@pytest.mark.parametrize("vacuumed", [True, False])
def test_a_session_whose_plans_are_old_reads_no_long_queue(
    subject: Database, vacuumed: bool
) -> None:
    """Plans made while the tables were empty must do when 5,000 wait: none reads all of them."""
    if subject.connection.info.server_version < 150000:
        pytest.skip("PostgreSQL 14 can't be told to count what was read by now")
    subject.empty()
    time = Time()
    subject.execute("ALTER TABLE dibs.entries SET (autovacuum_enabled = off)")
    if vacuumed:
        subject.execute("VACUUM dibs.entries")
    subject.execute("ANALYZE dibs.keys, dibs.entries")
    for turn in range(10):
        queue_up(subject, time, f"early {turn}", 3)
        subject.apply([Release(b"q", f"early {turn} {n}", tombstone=5.0) for n in range(3)], time)
    time.pass_by(10.0)
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
