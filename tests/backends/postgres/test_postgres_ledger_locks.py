"""Batches never deadlock, wait for no transaction that takes its time, and tell the time right."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from dibs.model import (
    Command,
    Failed,
    Granted,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Reply,
)
from tests.backends.postgres.ledger_subject import Database, database, take

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


@pytest.mark.parametrize("is_new", [True, False])
def test_a_key_that_a_transaction_keeps_is_busy_alone(
    subject: Database, another: Database, is_new: bool
) -> None:
    if not is_new:
        subject.apply([take(b"b", "before"), Release(b"b", "before")])
    with another.connection.transaction():
        another.apply([take(b"b", "joined")])
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
        another.apply([take(b"k5", "joined")])
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
        another.apply([take(b"a", "joined")])
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
