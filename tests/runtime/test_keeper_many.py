"""A hundred thousand leases of one process, looked after by one keeper."""

import gc
import tracemalloc
from uuid import uuid4

import pytest

from dibs.backends.memory import MemoryStore
from dibs.hub import Hub
from dibs.model import Renew
from dibs.sync import Client, Lease
from dibs.testing import ManualClock
from tests.runtime.stores import TappedStore

MANY = 100_000
TTL = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.mark.timeout(300)
def test_a_hundred_thousand_leases_are_renewed_in_time() -> None:
    clock = ManualClock()
    store = TappedStore(store=MemoryStore(f"memory://{uuid4()}", clock=clock))
    client = Client(Hub(store, clock=clock))
    leases: list[Lease] = []
    for number in range(MANY):
        leases.append(client.lock(f"key-{number}", ttl=TTL).acquire())
        if number % 1000 == 0:
            clock.advance(TTL / 10 * 1000 / MANY)  # not all at the same moment
    store.kept.clear()
    clock.advance(2 * TTL)
    assert not any(lease.lost for lease in leases)
    assert min(lease.remaining for lease in leases) > TTL / 2
    batches = [batch for batch in store.kept if isinstance(batch[0], Renew)]
    sent = sum(len(batch) for batch in batches)
    assert 5 * MANY <= sent <= 8 * MANY
    assert sent / len(batches) > 200, "they travel together"
    for lease in leases:
        lease.release()
    client.close()


@pytest.mark.timeout(300)
def test_what_a_lease_costs_in_memory_does_not_grow_with_their_number() -> None:
    def bytes_per_lease(count: int) -> float:
        clock = ManualClock()
        client = Client(Hub(MemoryStore(f"memory://{uuid4()}", clock=clock), clock=clock))
        locks = [client.lock(f"key-{number}", ttl=TTL) for number in range(count)]
        for lock in locks[:100]:
            lock.acquire().release()
        gc.collect()
        tracemalloc.start()
        leases = [lock.acquire() for lock in locks]
        gc.collect()
        before_renewals = tracemalloc.get_traced_memory()[0]
        clock.advance(3 * TTL)
        gc.collect()
        after_renewals = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert after_renewals < 1.3 * before_renewals, "renewals leave nothing behind"
        for lease in leases:
            lease.release()
        client.close()
        return after_renewals / count

    few, many = bytes_per_lease(2_000), bytes_per_lease(20_000)
    print(f"{many:.0f} bytes per lease, the memory store's own share included")
    assert many < 1.2 * few
    assert many < 4_000
