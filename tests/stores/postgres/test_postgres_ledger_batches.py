"""A batch costs nobody else a lease by an error or a corrupt row; and who is told of what it did."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest

from dibs.core.names import fingerprint
from dibs.model import (
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
    Renewed,
    Reply,
    Revoke,
    Status,
    Unknown,
)
from dibs.stores.port import BlockingConnection
from dibs.stores.postgres import PostgresStore, ledger, schema
from dibs.testing import ManualClock
from tests.sampling import sampled
from tests.servers.postgres import PostgresServer
from tests.stores.ledger_reference import Time
from tests.stores.postgres.ledger_mutants import FAST_MUTANTS, LONE_MUTANTS, MUTANTS
from tests.stores.postgres.ledger_plans import MORE_THAN_A_BATCH, PLANS
from tests.stores.postgres.ledger_subject import OTHER, OWN, Database, database, follow, take

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


@pytest.mark.parametrize(
    "bad",
    [
        take(b"bad", "\ud800"),
        take(b"bad", note="\ud800"),
        take(b"bad", note=b"bytes"),
        take(b"bad", units=2.0, capacity=2),
        take(b"bad", priority=None),
        take(b"bad", floor=2**64),
        take(b"bad", capacity=float("inf")),
        Renew(b"bad", "id", float("nan")),
        Release(b"bad", "\ud800"),
    ],
    ids=repr,
)
def test_a_command_that_no_row_can_hold_fails_alone(subject: Database, bad: Command) -> None:
    replies, _ = subject.apply([take(b"a"), bad, take(b"z"), Release(b"a", "id")])
    first, failed, last, released = replies
    assert isinstance(first, Granted)
    assert isinstance(failed, Failed)
    assert failed.reason == "invalid"
    assert isinstance(last, Granted)
    assert released == Released()
    [status], _ = subject.apply([Inspect(b"bad")])
    assert isinstance(status, Status)
    assert not status.holders


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


def test_commands_of_one_key_are_done_in_their_order(subject: Database) -> None:
    batch: list[Command] = []
    for n in range(5):
        batch += [take(b"a", f"id{n}"), take(b"b"), Renew(b"a", f"id{n}", 60.0)]
        batch += [Release(b"a", f"id{n}")]
    replies, _ = subject.apply(batch)
    mine = [reply for reply, command in zip(replies, batch, strict=True) if command.key == b"a"]
    assert [type(reply) for reply in mine] == [Granted, Renewed, Released] * 5
    tokens = [reply.token for reply in mine if isinstance(reply, Granted)]
    assert tokens == sorted(set(tokens))


def test_no_commands_have_no_replies(subject: Database) -> None:
    assert subject.apply([]) == ([], [])


def test_another_format_is_refused(subject: Database) -> None:
    newer = ledger.APPLY.text.replace(f"({schema.FORMAT},", f"({schema.FORMAT + 1},")
    with pytest.raises(psycopg.Error) as raised:
        subject.apply([take(b"a")], statement=newer)
    assert raised.value.sqlstate == "ZDV01"


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


def test_nobody_is_notified_where_nobody_else_waits(subject: Database) -> None:
    clock = Time()
    subject.apply([take(b"a", inbox=OTHER), take(b"a", "w", queue=True, inbox=OWN)], clock)
    _, notifications = subject.apply([Release(b"a", "id")], clock)
    assert [notification.inbox for notification in notifications] == [OWN], (
        "its own is returned, nothing is sent"
    )


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


def test_a_buried_id_is_gone_for_every_manner_of_asking(subject: Database) -> None:
    clock = Time()
    subject.apply([Release(b"a", "late", tombstone=60.0)], clock)
    replies, _ = subject.apply([take(b"a", "late"), take(b"a", "late", queue=True)], clock)
    assert replies == [Gone(), Gone()]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("name", sampled(MUTANTS | FAST_MUTANTS, every=5))
def test_a_planted_error_is_found(name: str, postgres_url: str) -> None:
    find(postgres_url, (MUTANTS | FAST_MUTANTS)[name], "together")


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("name", sampled(LONE_MUTANTS | FAST_MUTANTS, every=5))
def test_one_in_the_fast_path_is_found(name: str, postgres_url: str) -> None:
    find(postgres_url, (LONE_MUTANTS | FAST_MUTANTS)[name], "one by one")


def find(url: str, edit: tuple[str, str], manner: str) -> None:
    planted = sum(migration.sql.count(edit[0]) for migration in schema.migrations())
    assert planted == 1, "nothing was planted, or too much"
    with database(url, edit) as subject:
        with pytest.raises((AssertionError, ValueError, psycopg.Error)):
            for plan in (*PLANS, *([MORE_THAN_A_BATCH] if manner == "together" else [])):
                follow(plan, subject, manner)


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


def test_only_the_key_that_is_kept_is_busy_whoever_waits_for_it(
    subject: Database, another: Database, postgres_url: str
) -> None:
    """Batches that meet the kept key hold up nobody else's: what they have locked is let go."""
    keys = [b"k%d" % n for n in range(8)]
    busy: list[bytes] = []

    def ask(mine: Sequence[bytes]) -> None:
        found = Database(postgres_url)
        end = time.monotonic() + 2
        try:
            while time.monotonic() < end:
                replies, _ = found.apply([take(key, queue=True) for key in mine])
                pairs = zip(mine, replies, strict=True)
                busy.extend(key for key, reply in pairs if isinstance(reply, Failed))
        finally:
            found.close()

    with another.connection.transaction():
        another.apply_within([take(b"k5", "joined")])
        others = [key for key in keys if key != b"k5"]
        with threads(
            lambda: ask(keys), lambda: ask(keys[::-1]), lambda: ask(keys[3:]), lambda: ask(others)
        ) as errors:
            pass
    assert errors == []
    assert set(busy) == {b"k5"}


def test_what_a_transaction_has_undone_was_never_granted(
    subject: Database, another: Database
) -> None:
    with pytest.raises(ZeroDivisionError), another.connection.transaction():
        another.apply_within([take(b"a", "joined")])
        _ = 1 / 0
    [reply], _ = subject.apply([take(b"a")])
    assert isinstance(reply, Granted)


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


def test_no_session_time_zone_bends_a_lease(subject: Database, another: Database) -> None:
    zones = ["UTC", "Asia/Tokyo", "America/St_Johns", "Pacific/Apia", "Europe/Berlin"]
    subject.apply([take(b"a", "held", ttl=60.0)])
    for n, zone in enumerate(zones):
        another.execute(f"SET TIME ZONE '{zone}'")
        [refused, queued], _ = another.apply(
            [take(b"a", f"try {n}"), take(b"a", f"wait {n}", queue=True, ttl=60.0)]
        )
        assert isinstance(refused, Refused), zone
        assert 55 < refused.recheck_in <= 60, zone
        assert isinstance(queued, Queued)
        assert abs(queued.now - time.time()) < 5, zone


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
    clock.pass_by(29)
    subject.apply([Renew(b"a", "next", 30.0)], clock)
    clock.pass_by(2)
    subject.execute("SELECT dibs.sweep(10, %s, %s)", [clock.now(), clock.stamp()])
    _, notifications = subject.apply([])
    assert [(notification.inbox, notification.event) for notification in notifications] == [
        (OTHER, "granted")
    ]


def test_one_sweeps_at_a_time(subject: Database, another: Database) -> None:
    clock = Time()
    subject.apply([take(b"a", ttl=1.0)], clock)
    clock.pass_by(100)
    with another.connection.transaction():
        another.execute("SELECT FROM dibs.meta FOR UPDATE")
        swept = subject.execute("SELECT dibs.sweep(10, %s, %s)", [clock.now(), clock.stamp()])
        assert swept == [(0,)]


def test_a_scan_goes_through_all_that_begin_so(subject: Database) -> None:
    info, clock = subject.connection.info, ManualClock()
    url = f"postgresql://{info.user}@{info.host}:{info.port}/{info.dbname}"
    connection = PostgresStore(url, clock=clock).blocking_connection()
    keys = [b"lock:a", b"lock:b\xff", b"lock:b\xff\xff", b"lock:c", b"semaphore:x"]
    many = [b"lock:n%03d" % n for n in range(100)]
    with closing(connection):
        connection.apply([take(key) for key in keys + many], 5.0)
        connection.apply([take(b"lock:idle"), Release(b"lock:idle", "id")], 5.0)
        connection.apply([take(b"lock:dead", ttl=1.0)], 5.0)
        clock.advance(2)
        assert scanned(connection, b"lock:b\xff") == [b"lock:b\xff", b"lock:b\xff\xff"]
        assert scanned(connection, b"lock:") == sorted(keys[:4] + many)
        assert scanned(connection, b"", limit=7) == sorted(keys + many)
        assert scanned(connection, b"\xff\xff") == []


def scanned(connection: BlockingConnection, prefix: bytes, limit: int = 1000) -> list[bytes]:
    found: list[bytes] = []
    cursor = None
    while True:
        page = connection.scan(prefix, cursor, limit)
        assert len(page.items) <= limit
        found += [status.key for status in page.items]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("version", ["14", "16", "17", "18"])
@pytest.mark.slow
def test_the_same_on_every_version(
    postgres_servers: Callable[[str], PostgresServer], version: str
) -> None:
    server = postgres_servers(version)
    url = server.new_database()
    with database(url) as subject:
        test_a_scan_goes_through_all_that_begin_so(subject)
        subject.empty()
        test_idle_keys_are_thrown_out_a_part_at_a_time(subject)
    server.drop_database(url)
