"""What one command costs does not rise with the number of holders or waiters. Counted, not timed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from dibs.core.timing import COUNTED_POSITIONS, STEPS
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
    Status,
)
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from tests.stores.differential import Time
from tests.stores.postgres.database import Database, database
from tests.stores.redis.ledger_scripted import STAMP, Scripted

KEY = b"semaphore:pool"


class Meter(Protocol):
    """A store whose time the test moves."""

    def say(self, batch: Sequence[Command]) -> Sequence[Reply]:
        """The replies to a batch."""

    def work(self, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        """The replies to a batch, and what the store did for it, in units of its own."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""


class Sqlite:
    """Counts the steps of SQLite's virtual machine, by tens."""

    def __init__(self, folder: Path) -> None:
        self.time = 1000.0
        self.site = StoreFile(f"sqlite:///{folder}/leases.db", self, None)
        self.connection = Connection(self.site)

    def now(self) -> float:
        return self.time

    def stamp(self) -> int:
        return 1_700_000_000_000_000

    def wait(self, seconds: float) -> None:
        self.time += seconds

    def say(self, batch: Sequence[Command]) -> Sequence[Reply]:
        return self.connection.apply(batch)[0]

    def work(self, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        other = Connection(self.site)  # it remembers no rows
        other.apply([Inspect(b"lock:other")])
        steps = 0

        def tick() -> int:
            nonlocal steps
            steps += 1
            return 0

        assert other._db is not None
        other._db.set_progress_handler(tick, 10)
        replies, _ = other.apply(batch)
        other.close()
        return replies, steps


class Redis:
    """Counts the words of all commands that the script gives to Redis."""

    def __init__(self, scripted: Scripted) -> None:
        self.scripted = scripted
        self.scripted.redis.flushall()
        self.time = 1000.0

    def wait(self, seconds: float) -> None:
        self.time += seconds

    def say(self, batch: Sequence[Command]) -> Sequence[Reply]:
        return self.scripted.apply(batch, now=self.time, stamp=STAMP)[0]

    def work(self, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        with self.scripted.redis.monitor() as monitor:
            replies = self.say(batch)
            self.scripted.redis.echo("the end")
            words: list[str] = []
            for line in monitor.listen():
                if line["command"].startswith("ECHO"):
                    break
                if line["client_type"] == "lua":
                    words += line["command"].split()
        assert not {"HGETALL", "HKEYS", "HVALS", "KEYS"} & {word.upper() for word in words}
        return replies, len(words)


class Postgres:
    """Counts the rows that the functions read, by an index or not."""

    READ = """SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables
        WHERE schemaname = 'dibs'"""

    def __init__(self, subject: Database) -> None:
        self.subject = subject
        self.subject.empty()
        self.time = Time()

    def wait(self, seconds: float) -> None:
        self.time.advance(seconds)

    def say(self, batch: Sequence[Command]) -> Sequence[Reply]:
        return self.subject.apply(batch, self.time)[0]

    def work(self, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        self.subject.execute("BEGIN")
        [(before,)] = self.subject.execute(self.READ)
        replies = self.say(batch)
        [(after,)] = self.subject.execute(self.READ)
        self.subject.execute("COMMIT")
        return replies, int(after - before)


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def make_meter(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Meter]]:
    """Gives a meter of an empty store."""
    if request.param == "redis":
        scripted = request.getfixturevalue("scripted")
        yield lambda: Redis(scripted)
    elif request.param == "postgres":
        with database(request.getfixturevalue("postgres_url")) as subject:
            yield lambda: Postgres(subject)
    else:
        meters: list[Sqlite] = []

        def make() -> Meter:
            meters.append(Sqlite(tmp_path_factory.mktemp("costs")))
            return meters[-1]

        yield make
        for each in meters:
            each.connection.close()


def take(lease: str, capacity: int, **more: Any) -> Acquire:
    return Acquire(KEY, lease, "owner", more.pop("ttl", 60.0), capacity=capacity, **more)


def fill(meter: Meter, holders: int) -> None:
    """As many holders as there are units, one of which ends soon."""
    crowd = [take(f"h{n:05}", holders) for n in range(holders - 1)]
    for first in range(0, holders, 200):
        replies = meter.say(crowd[first : first + 200])
        assert all(isinstance(reply, Granted) for reply in replies)
    meter.say([take("soon", holders, ttl=5.0)])


PLANS: dict[str, Callable[[int], tuple[list[Command], type[Any]]]] = {
    "a refused acquire": lambda n: ([take("late", n)], Refused),
    "the last unit": lambda n: ([Release(KEY, "h00007"), take("late", n)], Granted),
    "a renewal": lambda _: ([Renew(KEY, "h00008", 90.0)], Renewed),
    "refused growth": lambda _: ([Resize(KEY, "h00009", 2, 1)], Refused),
    "a look": lambda _: ([Inspect(KEY)], Status),
    "a release": lambda _: ([Release(KEY, "h00011")], Released),
    "a place in the queue": lambda n: ([take("late", n, queue=True)], Queued),
}


@pytest.mark.parametrize(("few", "many"), [(120, 1000), (1100, 4000)], ids=["numbered", "not"])
def test_no_command_reads_all_holders(make_meter: Callable[[], Meter], few: int, many: int) -> None:
    compare(costs(make_meter(), few), costs(make_meter(), many))


def compare(few: dict[str, int], many: dict[str, int]) -> None:
    for what, cost in many.items():
        assert cost <= few[what] + 20, (what, few, many)


def costs(meter: Meter, holders: int) -> dict[str, int]:
    fill(meter, holders)
    found = {}
    for what, plan in PLANS.items():
        batch, answer = plan(holders)
        replies, found[what] = meter.work(batch)
        assert isinstance(replies[-1], answer), (what, replies[-1])
        meter.say([Release(KEY, "late"), take(f"after {what}", holders)])
    meter.wait(6.0)
    replies, found["an expiry"] = meter.work([take("late", holders)])
    assert isinstance(replies[-1], Granted)
    return found


def test_no_command_reads_all_waiters(make_meter: Callable[[], Meter]) -> None:
    compare(costs_in_queue(make_meter(), 1100), costs_in_queue(make_meter(), 3000))


def costs_in_queue(meter: Meter, waiters: int) -> dict[str, int]:
    meter.say([take("holder", 1)])
    names = queue_up(meter, waiters)[0]
    plans: dict[str, list[Command]] = {
        "a hand-over": [Release(KEY, "holder"), Renew(KEY, names[0], 60.0)],
        "a heartbeat at the front": [Renew(KEY, names[2], 60.0)],
        "a heartbeat at the end": [Renew(KEY, names[-1], 60.0)],
        "a place": [take("late", 1, queue=True, waiter_ttl=1e5)],
        "a waiter that leaves": [Release(KEY, names[waiters // 2], tombstone=60.0)],
    }
    return {what: meter.work(batch)[1] for what, batch in plans.items()}


def queue_up(meter: Meter, waiters: int) -> tuple[list[str], list[Any]]:
    """The ids of so many waiters, and the replies to them."""
    names = [f"w{n:04}" for n in range(waiters)]
    replies: list[Any] = []
    for first in range(0, waiters, 200):
        some = names[first : first + 200]
        replies += meter.say([take(name, 1, queue=True, waiter_ttl=1e5) for name in some])
    return names, replies


def test_a_long_queue_is_counted_in_part_and_let_in_step_by_step(
    make_meter: Callable[[], Meter],
) -> None:
    meter = make_meter()
    meter.say([take("holder", 1)])
    names, queued = queue_up(meter, COUNTED_POSITIONS + 10)
    assert [reply.position for reply in queued] == [
        min(n, COUNTED_POSITIONS) for n in range(len(names))
    ]

    def position(name: str, *before: Command) -> int:
        reply = meter.say([*before, Renew(KEY, name, 60.0)])[-1]
        assert isinstance(reply, Queued)
        return reply.position

    beats = [Renew(KEY, name, 60.0) for name in names[-9:]]
    assert position(names[COUNTED_POSITIONS - 3], *beats) == COUNTED_POSITIONS - 3
    assert position(names[-1], Release(KEY, names[0]), Release(KEY, names[1])) == COUNTED_POSITIONS
    late = take("late", 1, queue=True, waiter_ttl=1e5)
    assert (
        position(names[COUNTED_POSITIONS + 3], *beats, late, Release(KEY, names[2]))
        == COUNTED_POSITIONS
    )
    assert position(names[COUNTED_POSITIONS + 2], *beats) == COUNTED_POSITIONS - 1

    meter.say([take("more", 5000, queue=True, waiter_ttl=1e5)])
    looks, found = 1, look(meter)
    while found.waiting:
        assert found.holding <= 1 + (looks + 1) * (STEPS + 1)
        looks, found = looks + 1, look(meter)
    assert looks >= COUNTED_POSITIONS // STEPS


def look(meter: Meter) -> Status:
    [found] = meter.say([Inspect(KEY)])
    assert isinstance(found, Status)
    return found
