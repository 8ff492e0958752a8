"""Ctrl-C at every single bytecode of a member of a cohort: at most a ttl is lost by it, and no exclusion.

Every bytecode from the first to the last is tried, with others waiting in threads, on a store whose clock
is moved by hand.
"""

import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from dibs.backends.memory import MemoryStore
from dibs.hub import Hub
from dibs.sync import Client, Lease, Lock
from dibs.testing import ManualClock
from tests.runtime.interrupting import Interrupting
from tests.runtime.test_interrupts import _heard, no_surprises, pytestmark

__all__ = ["_heard", "no_surprises", "pytestmark"]  # fixtures and marks of this module, too

TTL = 3.0

type Action = Callable[[], object]


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.0002)


class Other(threading.Thread):
    """Another thread that acquires, sees whether anybody else could, and releases."""

    def __init__(self, site: "Site") -> None:
        super().__init__(daemon=True)
        self.site = site
        self.done = False
        self.trouble = ""
        self.start()

    def run(self) -> None:
        lease = self.site.lock.acquire()
        self.site.hub.keeper.flush(10)  # what was given up by mistake is given up now
        stolen = self.site.others.lock("a").try_acquire()
        if stolen is not None:
            if lease.remaining > 0:
                self.trouble = "two hold it"
            stolen.release()
        lease.release()
        self.done = True


class Site:
    """A store, a client of it that is interrupted, and another, as if of another process."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        store = MemoryStore(f"memory://{uuid4()}", clock=self.clock)
        self.hub = Hub(store, clock=self.clock)
        self.mine = Client(self.hub)
        self.others = Client(Hub(store, clock=self.clock))
        self.lock: Lock = self.mine.lock("a", ttl=TTL, cohort=4)
        self.hub.keeper.listen(10)
        self.waiting: list[Other] = []
        self.holder: threading.Thread | None = None
        self.follower: threading.Thread | None = None
        self.let_go = threading.Event()

    def members(self) -> int:
        """How many wait in line here."""
        return sum(len(cohort._line) for cohort in self.hub.thread_runtime().cohorts.values())

    def another_waits(self) -> None:
        before = self.members()
        self.waiting.append(Other(self))
        wait_for(lambda: self.members() > before)

    def held_by(self, lock: Lock, ready: Callable[[], object]) -> None:
        """A thread holds until somebody waits for it, or it is told to let go."""
        holds = threading.Event()

        def hold() -> None:
            lease = lock.acquire()
            holds.set()
            while not (ready() or self.let_go.is_set()):
                time.sleep(0.0002)
            lease.release()

        self.let_go.clear()
        self.holder = threading.Thread(target=hold, daemon=True)
        self.holder.start()
        assert holds.wait(20)

    def another_follows(self, ready: Callable[[], object]) -> None:
        """Another thread comes once it is time, or when the action is over."""

        def follow() -> None:
            while not (ready() or self.let_go.is_set()):
                time.sleep(0.0002)
            self.waiting.append(Other(self))

        self.follower = threading.Thread(target=follow, daemon=True)
        self.follower.start()

    def trouble(self) -> str | None:
        """What is wrong once a ttl and a half has passed, in the order in which it is found."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect(0)
        self.let_go.set()
        for thread in (self.holder, self.follower):
            if thread is not None:
                thread.join(20)
        waiting, self.waiting = self.waiting, []
        for _ in range(6):
            for other in waiting:
                other.join(0.004)
            if all(other.done for other in waiting):
                break
            self.clock.advance(TTL / 4)
        for other in waiting:
            other.join(2)
        if not all(other.done for other in waiting):
            return "somebody waits on"
        for other in waiting:
            if other.trouble:
                return other.trouble
        self.clock.advance(TTL)
        free: Lease | None = self.others.lock("a").try_acquire()
        if free is None:
            return "the key is not free"
        free.release()
        again = self.lock.try_acquire()
        if again is None:
            return "the thread that was interrupted can't acquire it any more"
        again.release()
        self.clock.advance(2 * TTL)
        return "leases are looked after that nobody has" if self.hub.keeper.leases() else None

    def close(self) -> None:
        self.mine.close()
        self.others.close()


def every_bytecode(make: Callable[[Site], Action], least: int) -> Iterator[str]:
    """Interrupt an action at its first bytecode, its second, … until it ends before; tell of trouble."""
    site, at, stopped = Site(), 0, 0
    while True:
        at += 1
        interrupting = Interrupting(at)
        action = make(site)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            stopped += interrupting.run(action)
            del action
        trouble = site.trouble()
        if trouble is not None:
            yield f"bytecode {at}: {trouble}"
        if not interrupting.reached:
            break
        if trouble is not None:
            site = Site()
    site.close()
    assert at > least, "far too few bytecodes: nothing was traced"
    assert stopped > least / 2


def releases_to_one_in_line(site: Site) -> Action:
    lease = site.lock.acquire()
    site.another_waits()
    return lease.release


def leaves_a_block_with_two_in_line(site: Site) -> Action:
    lease = site.lock.acquire()
    site.another_waits()
    site.another_waits()

    def action() -> None:
        with lease:
            pass

    return action


def waits_in_line(site: Site) -> Action:
    site.held_by(site.lock, site.members)

    def action() -> None:
        with site.lock:
            pass

    return action


def waits_in_line_before_another(site: Site) -> Action:
    """The other thread comes as soon as we wait; then the holder leaves."""
    site.held_by(site.lock, lambda: site.members() > 1)
    site.another_follows(site.members)

    def action() -> None:
        with site.lock:
            pass

    return action


def waits_in_the_stores_queue(site: Site) -> Action:
    """Another process holds; whoever comes after us here waits behind our place."""
    site.held_by(site.others.lock("a", ttl=TTL), site.members)
    site.another_follows(lambda: site.hub.thread_runtime().cohorts)

    def action() -> None:
        with site.lock:
            pass

    return action


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("make", "least"),
    [
        (releases_to_one_in_line, 300),
        (leaves_a_block_with_two_in_line, 300),
        (waits_in_line, 300),
        (waits_in_line_before_another, 300),
        (waits_in_the_stores_queue, 300),
    ],
)
def test_an_interrupt_at_any_bytecode_costs_at_most_a_ttl(
    make: Callable[[Site], Action], least: int
) -> None:
    assert list(every_bytecode(make, least)) == []
