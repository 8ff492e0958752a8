"""Idle keys are thrown out, and what there is can be listed."""

from collections.abc import Callable, Iterator

import pytest

from dibs.backends.postgres import script
from dibs.model import (
    Granted,
    Release,
    Renew,
)
from tests.backends.postgres.ledger_subject import Database, Time, database, take
from tests.servers.postgres import PostgresServer

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


def test_idle_keys_are_thrown_out_a_part_at_a_time(subject: Database) -> None:
    clock = Time()
    keys = [b"k%d" % n for n in range(10)]
    subject.apply([take(key) for key in keys], clock)
    subject.apply([Release(key, "id") for key in keys[2:]], clock)
    sweep = "SELECT dibs.sweep(4, %s, %s)"
    assert subject.execute(sweep, [clock.now + 50, clock.stamp]) == [(0,)], "not idle for long"
    at = [70, 70, 70, 140, 140, 140]
    rounds = [subject.execute(sweep, [clock.now + s, clock.stamp])[0][0] for s in at]
    assert sum(rounds[:3]) == 8
    assert sum(rounds[3:]) == 2, "what had expired was settled, and goes a minute later"
    assert subject.execute("SELECT key FROM dibs.keys") == []
    clock.stamp -= 3_600_000_000
    [reply], _ = subject.apply([take(b"k5")], clock)
    assert isinstance(reply, Granted)
    assert reply.token > clock.stamp + 3_600_000_000, "tokens still rise"


def test_a_sweep_hands_over_what_has_expired(subject: Database) -> None:
    clock = Time()
    subject.apply([take(b"a", "dead"), take(b"a", "next", queue=True, inbox="here")], clock)
    clock.pass_by(29)
    subject.apply([Renew(b"a", "next", 30.0)], clock)
    clock.pass_by(2)
    subject.execute("SELECT dibs.sweep(10, %s, %s)", [clock.now, clock.stamp])
    _, wakeups = subject.apply([])
    assert [(wakeup.inbox, wakeup.event) for wakeup in wakeups] == [("here", "granted")]


def test_one_sweeps_at_a_time(subject: Database, another: Database) -> None:
    clock = Time()
    subject.apply([take(b"a", ttl=1.0)], clock)
    clock.pass_by(100)
    with another.connection.transaction():
        another.execute("SELECT FROM dibs.meta FOR UPDATE")
        swept = subject.execute("SELECT dibs.sweep(10, %s, %s)", [clock.now, clock.stamp])
        assert swept == [(0,)]


def test_a_scan_goes_through_all_that_begin_so(subject: Database) -> None:
    clock = Time()
    keys = [b"lock:a", b"lock:b\xff", b"lock:b\xff\xff", b"lock:c", b"semaphore:x"]
    many = [b"lock:n%03d" % n for n in range(100)]
    subject.apply([take(key) for key in keys + many], clock)
    subject.apply([take(b"lock:idle"), Release(b"lock:idle", "id")], clock)
    subject.apply([take(b"lock:dead", ttl=1.0)], clock)
    clock.pass_by(2)
    assert scanned(subject, clock, b"lock:b\xff") == [b"lock:b\xff", b"lock:b\xff\xff"]
    assert scanned(subject, clock, b"lock:") == sorted(keys[:4] + many)
    assert scanned(subject, clock, b"", limit=7) == sorted(keys + many)
    assert scanned(subject, clock, b"\xff\xff") == []


def scanned(subject: Database, clock: Time, prefix: bytes, limit: int = 1000) -> list[bytes]:
    found: list[bytes] = []
    cursor = None
    while True:
        values = script.scan_parameters(prefix, cursor, limit, clock.now, clock.stamp)
        page = script.read_page(subject.execute(script.scan_statement(), values))
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
