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

from dibs.core.book import bits_of
from dibs.model import (
    Acquire,
    Command,
    Notification,
    Release,
    Renew,
    Reply,
)
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from tests.sampling import EVERY, examples
from tests.stores.ledger_reference import SWEPT, VECTORS, Reference, Time, plain
from tests.stores.redis.ledger_commands import PLANS as DRAWN


def revoked_last(
    notifications: Sequence[Notification],
) -> tuple[list[Notification], list[Notification]]:
    others = [notification for notification in notifications if notification.event != "revoked"]
    revoked = [notification for notification in notifications if notification.event == "revoked"]
    return others, sorted(revoked, key=lambda notification: notification.lease)


class Subject:
    """The same over a file."""

    def __init__(self, path: Path, clock: Time, manner: str) -> None:
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


MANNERS = ("remembering", "reopened", "in turns")


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(plan=DRAWN, manner=st.sampled_from(MANNERS))
def test_rows_answer_as_memory_does(plan: list[Any], manner: str) -> None:
    with TemporaryDirectory() as folder:
        follow(plan, Path(folder, "leases.db"), manner)


@EVERY
@pytest.mark.parametrize("manner", MANNERS)
def test_the_vectors_are_answered_alike(tmp_path: Path, manner: str, every: int) -> None:
    """The conformance suite replays them all, remembering."""
    for number, plan in enumerate((*VECTORS[::every], SWEPT)):
        follow(plan, tmp_path / f"{number}.db", manner)


def follow(plan: list[Any], path: Path, manner: str) -> None:
    clock = Time()
    subject, reference = Subject(path, clock, manner), Reference(clock)
    try:
        for step in plan:
            if isinstance(step, float):
                clock.pass_by(step)
            elif isinstance(step, int):
                clock.wall += step
            elif step == "sweep":
                keys = list(reference.books)
                found = subject.connection.sweep(keys)
                assert revoked_last(found) == revoked_last(reference.sweep())
            else:
                expected, expected_notifications = reference.apply(step)
                replies, notifications = subject.apply(step)
                assert [plain(r) for r in replies] == [plain(r) for r in expected], step
                assert revoked_last(notifications) == revoked_last(expected_notifications), step
            check_counts(subject.connection)
    finally:
        subject.close()


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
    clock = Time()
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
