"""A long queue costs each command no more than a short one: counted in steps of SQLite's machine."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from dibs.core.book import MemoryBook
from dibs.core.ledger import apply
from dibs.model import Acquire, Command, Release, Renew, Reply
from dibs.stores.port import MAX_BATCH
from tests.stores.sqlite_help import ManualClock, acquire, blocking, run

KEY = b"lock:crowded"
SHORT, LONG = 500, 5000
AT_ONCE = 10
"""So many of SQLite's steps are counted as one."""


class Queue:
    """A key that is held, and so many who wait for it."""

    def __init__(self, path: Path, waiters: int) -> None:
        self.clock = ManualClock()
        self._backend = blocking(path, clock=self.clock)
        self._steps = 0
        self.apply([acquire(KEY, "holder", ttl=1e6)])
        self._backend._connection._db.set_progress_handler(self._step, AT_ONCE)
        self.names = [f"w{number}" for number in range(waiters)]
        self.to_fill = self.steps(self.queueing(name) for name in self.names)

    def _step(self) -> None:
        self._steps += AT_ONCE

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        replies: list[Reply] = run(self._backend.apply(commands))
        return replies

    def queueing(self, name: str, **more: object) -> Acquire:
        return acquire(KEY, name, queue=True, waiter_ttl=1e6, **more)

    def steps(self, commands: Iterator[Command], batch: int = MAX_BATCH) -> float:
        """What each of them costs, on average."""
        wanted, before = list(commands), self._steps
        for start in range(0, len(wanted), batch):
            self.apply(wanted[start : start + batch])
        return (self._steps - before) / max(len(wanted), 1)

    def close(self) -> None:
        run(self._backend.close())


def to_fill(queue: Queue) -> float:
    return queue.to_fill


def to_speak_up(queue: Queue) -> float:
    """Everybody's sign of life, as they travel: many together."""
    return queue.steps(queue.queueing(name) for name in queue.names)


def to_join_alone(queue: Queue) -> float:
    return queue.steps((queue.queueing(f"late {n}") for n in range(50)), batch=1)


def to_pass_it_on(queue: Queue) -> float:
    """Release and claim, one at a time."""
    holders = ["holder", *queue.names[:50]]
    turns = pairwise(holders)
    commands = ((Release(KEY, left), Renew(KEY, next_, 1e6)) for left, next_ in turns)
    return queue.steps((command for turn in commands for command in turn), batch=1)


def to_give_up(queue: Queue) -> float:
    names = Random(1).sample(queue.names, len(queue.names))
    return queue.steps(Release(KEY, name) for name in names)


@pytest.mark.parametrize("cost", [to_fill, to_speak_up, to_join_alone, to_pass_it_on, to_give_up])
def test_a_long_queue_costs_each_command_what_a_short_one_does(
    tmp_path: Path, cost: Callable[[Queue], float]
) -> None:
    costs = []
    for waiters in (SHORT, LONG):
        queue = Queue(tmp_path / f"{waiters}.db", waiters)
        costs.append(cost(queue))
        queue.close()
    short, long = costs
    assert short > 0
    assert long < 2 * short


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_positions_are_true_however_they_are_asked_for(tmp_path: Path, batch: int) -> None:
    """Some are in a hurry, many ask together, some leave in between."""
    queue, book, draw = Queue(tmp_path / "leases.db", 0), MemoryBook(), Random(batch)
    apply(book, acquire(KEY, "holder", ttl=1e6), queue.clock.now(), queue.clock.stamp())
    names = [f"w{number}" for number in range(100)]
    for _ in range(10):
        commands: list[Command] = [
            queue.queueing(name, priority=int(name[-1]) % 3) for name in draw.choices(names, k=64)
        ]
        commands += [Release(KEY, name) for name in draw.choices(names, k=16)]
        draw.shuffle(commands)
        for start in range(0, len(commands), batch):
            some = commands[start : start + batch]
            told = [apply(book, each, queue.clock.now(), queue.clock.stamp())[0] for each in some]
            assert queue.apply(some) == told
    assert book.waiting > 30
    queue.close()
