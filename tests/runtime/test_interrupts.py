"""Ctrl-C at any bytecode of a thread: at most one ttl is lost by it.

CI tries each `STRIDE`-th bytecode, `make torture` every single one, on a store whose clock is moved by hand.
"""

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dibs.sync import AllOf, Lease, Lock
from tests.locks.worlds import World
from tests.runtime.interrupting import at_bytecodes

TTL = 3.0
STRIDE = 17
STRIDES = pytest.mark.parametrize(
    "stride", [STRIDE, pytest.param(1, id="every one", marks=pytest.mark.long)]
)

pytestmark = [
    pytest.mark.slow,
    # an interrupt may come between making a coroutine and starting it
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


class Site:
    """A store, a client of it that is interrupted, and another, as if of another process."""

    def __init__(self) -> None:
        w = World("sync")
        self.clock, self.mine, self.others = w.clock, w.client, w.another()
        self.bystander = self.mine.lock("bystander", ttl=TTL).acquire()
        self.lock = self.mine.lock("a", ttl=TTL)
        self.both = AllOf(self.mine.lock("b", ttl=TTL), self.lock)

    def block(self) -> None:
        with self.mine.lock("a", ttl=TTL):
            pass

    def acquire_and_release(self) -> None:
        self.lock.acquire().release()

    def nested_blocks(self) -> None:
        lock = self.mine.lock("a", ttl=TTL, reentrant=True)
        with lock, lock:
            pass

    def try_and_enter(self) -> None:
        lease = self.lock.try_acquire()
        assert lease is not None
        with lease:
            lease.ensure()

    def block_of_several(self) -> None:
        with AllOf(self.mine.lock("b", ttl=TTL), self.lock):
            pass

    def acquire_and_release_several(self) -> None:
        self.both.acquire().release()

    def several_of_which_one_is_held(self) -> None:
        """What was granted of the other is given back."""
        held = self.others.lock("b", ttl=TTL).acquire()
        try:
            assert self.both.try_acquire() is None
        finally:
            held.release()

    def trouble(self) -> str | None:
        """What is wrong once a ttl has passed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect(0)
            self.clock.advance(TTL)
        if self.bystander.lost:
            return "another lease was lost by it"
        for name in "ab":
            free: Lease | None = self.others.lock(name).try_acquire()
            if free is None:
                return f"{name} is not free"
            free.release()
        again = self.both.try_acquire()
        if again is None:
            return "the thread that was interrupted can't acquire them any more"
        again.release()
        self.clock.advance(2 * TTL)
        return None if self.bystander.remaining else "another lease was lost by it, later"

    def close(self) -> None:
        self.bystander.release()
        self.mine.close()
        self.others.close()


def troubles(action: str, *, cold: bool, stride: int) -> Iterator[str]:
    """Interrupt an action at each `stride`-th bytecode; tell of trouble."""
    sites = [Site()]
    for at, _ in at_bytecodes(stride, lambda: getattr(sites[-1], action), least=200):
        trouble = sites[-1].trouble()
        if trouble is not None:
            yield f"bytecode {at}: {trouble}"
        if cold or trouble is not None:
            sites.pop().close()
            sites.append(Site())
    sites.pop().close()


@pytest.fixture(autouse=True)
def no_surprises(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each run has the same bytecodes, and nobody keeps what an interrupted finalizer had in hand.

    Nothing is logged: an interrupt within `logging` leaves its handlers locked, for this whole process.
    """
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(logging.getLogger("dibs"), "disabled", True)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


ONE = ["block", "acquire_and_release", "try_and_enter", "nested_blocks"]
SEVERAL = ["block_of_several", "acquire_and_release_several", "several_of_which_one_is_held"]
"""There are many more bytecodes in it than in an acquire of one."""


def cases(actions: list[str], *, cold: bool, stride: int, marks: Any = ()) -> list[Any]:
    return [pytest.param(action, cold, stride, marks=marks) for action in actions]


@pytest.mark.parametrize(
    ("action", "cold", "stride"),
    [
        *cases(ONE, cold=False, stride=STRIDE),
        *cases(SEVERAL, cold=False, stride=101),
        *cases(ONE, cold=False, stride=1, marks=pytest.mark.long),
        *cases(ONE, cold=True, stride=1, marks=pytest.mark.long),
        *cases(SEVERAL, cold=False, stride=17, marks=pytest.mark.long),
    ],
)
def test_an_interrupt_at_any_bytecode_costs_at_most_a_ttl(
    action: str, cold: bool, stride: int
) -> None:
    assert list(troubles(action, cold=cold, stride=stride)) == []


@STRIDES
@pytest.mark.parametrize("reentrant", [False, True])
def test_an_interrupted_release_can_be_tried_again_and_is_not_renewed(
    stride: int, *, reentrant: bool
) -> None:
    """The lease is still in the hands of a caller who believes to have released it."""
    site, stopped = Site(), 0
    lock = site.mine.lock("a", ttl=TTL, reentrant=reentrant)
    leases: list[Lease] = []

    def acquire() -> Callable[[], object]:
        leases.append(lock.acquire())
        if reentrant:
            lock.acquire().release()
        return leases[-1].release

    for at, came in at_bytecodes(stride, acquire, least=50):
        stopped += came
        leases[-1].release()
        trouble = site.trouble()
        assert trouble is None, f"bytecode {at}: {trouble}"
    assert stopped > 50 / stride
    site.close()


@STRIDES
def test_a_lock_can_be_shared_after_any_interrupt(stride: int) -> None:
    """What a primitive works out at its first use is whole or not there."""
    site = Site()

    def make() -> Callable[[], object]:
        lock: Lock = site.mine.lock("a", ttl=TTL)
        site.lock = lock
        return lock.try_acquire

    for _ in at_bytecodes(stride, make, least=50):
        site.clock.advance(TTL)
        site.lock.acquire(wait=0).release()
    site.close()
