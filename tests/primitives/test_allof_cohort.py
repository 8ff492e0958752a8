"""A lock that stands in a cohort and in an AllOf at once: whoever waits in line has it when both are done."""

import threading

import dibs.sync
from dibs.hub import Hub
from tests.primitives.elections import PATIENCE
from tests.primitives.worlds import World


def test_the_next_in_line_has_it_when_the_last_of_several_leases_is_given_up() -> None:
    w = World("sync")
    client = dibs.sync.Client(Hub(w.store, clock=w.clock))
    lock = client.lock("a", cohort=8, reentrant=True)
    outer = lock.acquire()
    both = dibs.sync.AllOf(lock, client.lock("b")).acquire()
    told: list[int] = []

    def wait_in_line() -> None:
        with lock as lease:
            told.append(lease.token)

    waiter = threading.Thread(target=wait_in_line)
    waiter.start()
    cohorts = client.hub.thread_runtime().cohorts
    while not any(cohort._line for cohort in cohorts.values()):
        pass
    outer.release()
    both.release()
    waiter.join(PATIENCE)  # the clock stands still: no time passes that could help
    assert told == [outer.token + 1], "it was passed on within the cohort"
