"""Ctrl-C at any bytecode of a reentrant lock: at most one ttl is lost by it, and no count goes wrong."""

import pytest

from tests.runtime.interrupting import Interrupting
from tests.runtime.test_interrupts import (
    STRIDES,
    TTL,
    Action,
    Site,
    _heard,
    every_bytecode,
    no_surprises,
)

__all__ = ["_heard", "no_surprises"]  # fixtures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


def nested_blocks(site: Site) -> Action:
    lock = site.mine.lock("a", ttl=TTL, reentrant=True)

    def action() -> None:
        with lock, lock:
            pass

    return action


@STRIDES
def test_an_interrupt_of_nested_blocks_costs_at_most_a_ttl(stride: int) -> None:
    assert list(every_bytecode(nested_blocks, cold=False, stride=stride)) == []


@STRIDES
def test_an_interrupted_release_can_be_tried_again(stride: int) -> None:
    """By a person who keeps both leases in hand, of which the outer one was released before."""
    site, at = Site(), 0
    lock = site.mine.lock("a", ttl=TTL, reentrant=True)
    while True:
        at += stride
        outer, inner = lock.acquire(), lock.acquire()
        outer.release()
        interrupting = Interrupting(at)
        interrupting.run(inner.release)
        if not interrupting.reached:
            break
        inner.release()
        trouble = site.trouble()
        assert trouble is None, f"bytecode {at}: {trouble}"
    assert at > 100
    site.close()
