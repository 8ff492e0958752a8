"""What one command costs does not rise with the number of holders or waiters. Counted, not timed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

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
from dibs.testing import ManualClock
from tests.stores.postgres.database import Database
from tests.stores.redis.ledger_scripted import Scripted
from tests.stores.test_ledgers import InRows, made

KEY = b"semaphore:pool"


class Meter:
    """An empty store whose time the test moves."""

    def __init__(self, subject: Scripted | InRows | Database) -> None:
        subject.empty()
        self._subject = subject
        self._time = ManualClock()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._time.advance(seconds)

    def say(self, batch: Sequence[Command]) -> Sequence[Reply]:
        """The replies to a batch."""
        return self._subject.apply(batch, self._time)[0]

    def work(self, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        """The replies to a batch, and what the store did for it, in units of its own."""
        match self._subject:
            case InRows():
                return self._steps(self._subject, batch)
            case Scripted():
                return self._words(self._subject, batch)
            case _:
                return self._rows(self._subject, batch)

    def _steps(self, subject: InRows, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        """Steps of SQLite's virtual machine, in tens."""
        other = Connection(subject.connections[0].file)  # it remembers no rows
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

    def _words(self, subject: Scripted, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        """Words of all commands that the script gives to Redis."""
        redis = subject.redis
        words: list[str] = []
        with redis.monitor() as monitor:
            replies = self.say(batch)
            redis.echo("the end")
            for line in monitor.listen():
                if line["command"].startswith("ECHO"):
                    break
                if line["client_type"] == "lua":
                    words += line["command"].split()
        assert not {"HGETALL", "HKEYS", "HVALS", "KEYS"} & {word.upper() for word in words}
        return replies, len(words)

    def _rows(self, subject: Database, batch: Sequence[Command]) -> tuple[Sequence[Reply], int]:
        """Rows that PostgreSQL's functions read, by an index or not."""
        execute = subject.execute
        execute("BEGIN")
        [(before,)] = execute(READ)
        replies = self.say(batch)
        [(after,)] = execute(READ)
        execute("COMMIT")
        return replies, int(after - before)


READ = """SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables
    WHERE schemaname = 'dibs'"""


@pytest.fixture(params=["sqlite remembering", "redis function", "postgres together"])
def make_meter(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Meter]]:
    """Gives a meter of an empty store; the one before is over then."""
    with made(request.param, request, tmp_path_factory) as subject:
        yield lambda: Meter(subject)


def take(lease: str, capacity: int, **more: Any) -> Acquire:
    return Acquire(KEY, lease, "owner", more.pop("ttl", 60.0), capacity=capacity, **more)


def fill(meter: Meter, many: int, of: Callable[[str], Acquire]) -> list[str]:
    """Holders or waiters, in several batches; their names."""
    names = [f"{number:05}" for number in range(many)]
    for first in range(0, many, 200):
        meter.say([of(name) for name in names[first : first + 200]])
    return names


PLANS: dict[str, Callable[[int], tuple[list[Command], type[Any]]]] = {
    "a refused acquire": lambda n: ([take("late", n)], Refused),
    "the last unit": lambda n: ([Release(KEY, "00007"), take("late", n)], Granted),
    "a renewal": lambda _: ([Renew(KEY, "00008", 90.0)], Renewed),
    "refused growth": lambda _: ([Resize(KEY, "00009", 2, 1)], Refused),
    "a look": lambda _: ([Inspect(KEY)], Status),
    "a release": lambda _: ([Release(KEY, "00011")], Released),
    "a place in the queue": lambda n: ([take("late", n, queue=True)], Queued),
}


@pytest.mark.parametrize(("few", "many"), [(120, 1000), (1100, 2000)], ids=["numbered", "not"])
def test_no_command_reads_all_holders(make_meter: Callable[[], Meter], few: int, many: int) -> None:
    compare(costs(make_meter(), few), costs(make_meter(), many))


def compare(few: dict[str, int], many: dict[str, int]) -> None:
    assert not [what for what in many if many[what] > few[what] + 20], (few, many)


def costs(meter: Meter, holders: int) -> dict[str, int]:
    """As many holders as there are units, one of which ends soon."""
    fill(meter, holders - 1, lambda name: take(name, holders))
    meter.say([take("soon", holders, ttl=5.0)])
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
    compare(costs_in_queue(make_meter(), 1100), costs_in_queue(make_meter(), 1900))


def costs_in_queue(meter: Meter, waiters: int) -> dict[str, int]:
    meter.say([take("holder", 1)])
    names = fill(meter, waiters, lambda name: take(name, 1, queue=True, waiter_ttl=1e5))
    plans: dict[str, list[Command]] = {
        "a hand-over": [Release(KEY, "holder"), Renew(KEY, names[0], 60.0)],
        "a heartbeat at the front": [Renew(KEY, names[2], 60.0)],
        "a heartbeat at the end": [Renew(KEY, names[-1], 60.0)],
        "a place": [take("late", 1, queue=True, waiter_ttl=1e5)],
        "a waiter that leaves": [Release(KEY, names[waiters // 2], tombstone=60.0)],
    }
    return {what: meter.work(batch)[1] for what, batch in plans.items()}
