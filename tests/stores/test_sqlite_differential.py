"""A book in rows answers as one in memory does, whatever is asked of it and however it is asked.

Every sequence of commands is applied to `MemoryBook` and to a file, in batches: by one connection that
remembers, by one that is opened anew for each batch, or by two in turns.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dibs.core import ledger
from dibs.core.book import MemoryBook, bits_of
from dibs.model import (
    Acquire,
    Command,
    Inspect,
    Notification,
    Refused,
    Release,
    Renew,
    Reply,
)
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from tests.stores.postgres.ledger_commands import KEYS, plans
from tests.stores.told_plans import TOLD


class ManualClock:
    def __init__(self) -> None:
        self.time = 1000.0
        self.wall = 1_700_000_000_000_000

    def now(self) -> float:
        return self.time

    def stamp(self) -> int:
        return self.wall


def plain(reply: Reply) -> Reply:
    """Refusals name holders in any order, and of many holders any."""
    if not isinstance(reply, Refused):
        return reply
    holders = sorted(reply.holders, key=lambda holder: (holder.token, holder.lease))
    shown = tuple(holders) if len(holders) < ledger.HOLDERS_NAMED else ()
    return Refused(reply.reason, shown, reply.recheck_in)


def revoked_last(
    notifications: Sequence[Notification],
) -> tuple[list[Notification], list[Notification]]:
    others = [notification for notification in notifications if notification.event != "revoked"]
    revoked = [notification for notification in notifications if notification.event == "revoked"]
    return others, sorted(revoked, key=lambda notification: notification.lease)


class Reference:
    """The ledger over books in memory, with the same rule for idle keys."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.floor = 0
        self.books: dict[bytes, MemoryBook] = {}

    def apply(self, batch: Sequence[Command]) -> tuple[list[Reply], list[Notification]]:
        replies, notifications, bound = [], [], ledger.Batch()
        for command in batch:
            book = self.books.setdefault(command.key, MemoryBook(self.floor))
            reply, more = ledger.apply(book, command, self.clock.now(), self.clock.stamp(), bound)
            replies.append(reply)
            notifications += more
        return replies, notifications

    def sweep(self) -> list[Notification]:
        """Inspecting a key settles it, as the store's own sweep does."""
        notifications = []
        for key in KEYS:
            notifications += self.apply([Inspect(key)])[1]
            if self.books[key].idle:
                self.floor = max(self.floor, self.books.pop(key).last)
        return notifications


class Subject:
    """The same over a file."""

    def __init__(self, path: Path, clock: ManualClock, manner: str) -> None:
        self.site = StoreFile(f"sqlite:///{path}", clock, None)
        self.manner = manner
        self.connection = Connection(self.site)
        self.other = Connection(self.site)

    def apply(self, batch: Sequence[Command]) -> tuple[list[Reply], list[Notification]]:
        if self.manner == "reopened":
            self.connection.close()
        elif self.manner == "in turns":
            self.connection, self.other = self.other, self.connection
        return self.connection.apply(batch)

    def close(self) -> None:
        self.connection.close()
        self.other.close()


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    plan=plans,
    manner=st.sampled_from(["remembering", "reopened", "in turns"]),
)
def test_rows_answer_as_memory_does(plan: list[Any], manner: str) -> None:
    with TemporaryDirectory() as folder:
        clock = ManualClock()
        subject = Subject(Path(folder, "leases.db"), clock, manner)
        try:
            follow(plan, clock, Reference(clock), subject)
        finally:
            subject.close()


@pytest.mark.parametrize("plan", TOLD)
@pytest.mark.parametrize("manner", ["remembering", "reopened", "in turns"])
def test_what_chance_comes_upon_too_seldom(tmp_path: Path, plan: list[Any], manner: str) -> None:
    clock = ManualClock()
    subject = Subject(tmp_path / "leases.db", clock, manner)
    try:
        follow(plan, clock, Reference(clock), subject)
    finally:
        subject.close()


def follow(plan: list[Any], clock: ManualClock, reference: Reference, subject: Subject) -> None:
    for step in plan:
        if isinstance(step, float):
            clock.time += step
            clock.wall += int(step * 1e6)
        elif step == "step back":
            clock.wall -= 3_600_000_000
        elif step == "sweep":
            assert revoked_last(subject.connection.sweep(KEYS)) == revoked_last(reference.sweep())
        else:
            expected, expected_notifications = reference.apply(step)
            replies, notifications = subject.apply(step)
            assert [plain(r) for r in replies] == [plain(r) for r in expected], step
            assert revoked_last(notifications) == revoked_last(expected_notifications), step
        check_counts(subject.connection)


def check_counts(connection: Connection) -> None:
    """What the keys' rows say of other rows is true: how many there are, and that none ends earlier."""
    for key, waiting, holds, tombs, due, used, taken, units, slots, expires in connection.read(
        "SELECT key, waiting, holds, tombs, due, used, taken, iif(id IS NULL, 0, units),"
        " iif(id IS NULL, '', slots), iif(id IS NULL, NULL, expires) FROM lease_keys"
    ):  # what is left of a released hold does not matter
        assert expires is None or due <= expires
        [(earliest,)] = connection.read("SELECT min(expires) FROM lease_entries WHERE key = ?", key)
        assert earliest is None or due <= earliest
        assert [waiting, holds, tombs] == [count(connection, kind, key) for kind in (0, 1, 2)]
        others = connection.read(
            "SELECT units, slots FROM lease_entries WHERE key = ? AND kind = 1", key
        )
        holds = [(units, slots), *others]
        assert used == sum(units for units, _ in holds)
        numbers = [int(slot) for _, slots in holds for slot in slots.split(",") if slot]
        assert int.from_bytes(taken) == bits_of(numbers)


def count(connection: Connection, kind: int, key: bytes) -> int:
    [(rows,)] = connection.read(
        "SELECT count(*) FROM lease_entries WHERE kind = ? AND key = ?", kind, key
    )
    return int(rows)


def places(connection: Connection, key: bytes, many: int) -> Iterator[str]:
    for number in range(many):
        waiter = Acquire(key, f"w{number}", "o", 30.0, queue=True, waiter_ttl=600.0)
        connection.apply([waiter])
        yield waiter.id


def test_a_large_queue_is_never_read_whole(tmp_path: Path) -> None:
    """Neither the hand-over at the head nor a sign of life from the end looks at all the rows."""
    clock = ManualClock()
    connection = Connection(StoreFile(f"sqlite:///{tmp_path}/q.db", clock, None))
    connection.apply([Acquire(b"lock:x", "holder", "o", 30.0)])
    *_, last = places(connection, b"lock:x", 2000)
    steps_taken = 0

    def tick() -> int:
        nonlocal steps_taken
        steps_taken += 1
        return 0

    assert connection._db is not None
    connection._db.set_progress_handler(tick, 100)
    connection.apply([Release(b"lock:x", "holder")])
    assert steps_taken * 100 < 2000, "SQLite took more steps than there are places"
    [granted] = connection.read("SELECT id FROM lease_keys")
    assert granted == ("w0",)
    [reply], _ = connection.apply([Renew(b"lock:x", last, 30.0)])
    assert reply.position == 1000  # type: ignore[union-attr]
    connection.close()
