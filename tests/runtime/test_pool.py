"""Threads share the connections that are best for a store, in the order in which they came."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.runtime import threads as pools
from dibs.runtime.port import step
from dibs.runtime.threads import Pool
from dibs.stores.port import Backend
from dibs.stores.sqlite import SqliteStore


class Made:
    """A pool over a file, and how many connections it has made."""

    def __init__(self, path: Path, most: int | None) -> None:
        self.store = SqliteStore(f"sqlite:///{path}")
        self.count = 0
        self.pool = Pool(self._make, most)

    def _make(self) -> Backend:
        self.count += 1
        return self.store.backend(blocking=True)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path / "leases.db", 1)
    yield made
    made.pool.close()


def in_line(pool: Pool, count: int) -> None:
    """Wait until so many stand in line."""
    end = time.monotonic() + 10
    while len(pool._line) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_many_threads_share_one_connection_and_none_is_passed_over(one: Made) -> None:
    first = one.pool.take()
    served: list[int] = []

    def take(number: int) -> None:
        backend = one.pool.take()
        assert backend is first
        served.append(number)
        one.pool.give(backend)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for number, thread in enumerate(threads):
        thread.start()
        in_line(one.pool, number + 1)
    one.pool.give(first)
    for thread in threads:
        thread.join(10)
    assert served == list(range(8))
    assert one.count == 1


def test_a_connection_that_never_comes_back_costs_a_wait_once(
    one: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LONGEST", 0.05)
    lost = one.pool.take()
    second = one.pool.take()
    assert second is not lost
    one.pool.discard(second)  # nor does the next one
    begun = time.monotonic()
    one.pool.give(one.pool.take())
    assert time.monotonic() - begun < 0.05
    step(lost.close())


def test_whoever_waits_for_a_connection_that_is_given_up_makes_another(one: Made) -> None:
    broken = one.pool.take()
    taken: list[Backend] = []
    thread = threading.Thread(target=lambda: taken.append(one.pool.take()))
    thread.start()
    in_line(one.pool, 1)
    begun = time.monotonic()
    one.pool.discard(broken)
    thread.join(10)
    assert time.monotonic() - begun < pools.LONGEST
    assert taken != [broken]
    one.pool.give(taken[0])


def test_a_store_without_a_limit_lets_nobody_wait(tmp_path: Path) -> None:
    made = Made(tmp_path / "leases.db", None)
    taken = [made.pool.take() for _ in range(pools.MAX_IDLE + 4)]
    assert len(set(map(id, taken))) == len(taken)
    for backend in taken:
        made.pool.give(backend)
    assert len(made.pool._idle) == pools.MAX_IDLE
    made.pool.close()
