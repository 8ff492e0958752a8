"""Threads share the connections that a store allows, in the order in which they came."""

import threading
import time

import pytest

from dibs.runtime import pool as pools
from dibs.runtime.pool import Pool, Slot
from tests.servers.waiting import wait_until

SOON = 10.0
"""Seconds within which all ends when all is well."""


@pytest.fixture
def one() -> Pool:
    return Pool(1)


def in_line(pool: Pool, count: int) -> None:
    wait_until(lambda: len(pool._queue) >= count, "they stand in line")


def test_many_threads_share_one_connection_and_none_is_passed_over(one: Pool) -> None:
    first = one.take(SOON)
    served: list[int] = []

    def take(number: int) -> None:
        slot = one.take(SOON)
        assert slot is first
        served.append(number)
        one.give(slot)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for number, thread in enumerate(threads):
        thread.start()
        in_line(one, number + 1)
    one.give(first)
    for thread in threads:
        thread.join(10)
    assert served == list(range(8))


def test_a_connection_that_its_thread_has_lost_is_replaced(
    one: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_EVERY", 0.02)
    lost: list[Slot] = []
    dead = threading.Thread(target=lambda: lost.append(one.take(SOON)))
    dead.start()
    dead.join(10)
    second = one.take(SOON)
    assert second is not lost[0]
    third = one.take(SOON)  # this thread's own, which it can't be using
    assert third is not second
    one.give(second)
    assert list(one._idle) == [], "what was replaced is closed, and not used again"
    third.thread = None  # as an interrupt leaves it between two steps
    fourth = one.take(SOON)
    assert fourth is not third
    one.give(fourth)


def test_whoever_waits_for_a_connection_that_is_given_up_makes_another(one: Pool) -> None:
    broken = one.take(SOON)
    taken: list[Slot] = []
    thread = threading.Thread(target=lambda: taken.append(one.take(SOON)))
    thread.start()
    in_line(one, 1)
    begun = time.monotonic()
    one.discard(broken)
    thread.join(10)
    assert time.monotonic() - begun < pools.LOOK_EVERY
    assert taken != [broken]
    one.give(taken[0])
