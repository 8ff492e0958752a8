"""What several leases cost in round trips, as the servers count them."""

import pytest

from tests.backends.round_trips import Counter, Mode, Side, counter_of

TTL = 30.0


@pytest.fixture(params=["redis", "postgres"])
def counter(request: pytest.FixtureRequest) -> Counter:
    return counter_of(request.param, request)


@pytest.mark.parametrize("mode", ["async", "blocking"])
def test_several_are_acquired_in_one_round_trip_and_released_in_one(
    mode: Mode, counter: Counter
) -> None:
    side = Side(mode, counter)

    async def case() -> None:
        client = side.client()
        both = side.all_of(
            client.lock("b", ttl=TTL),
            (client.semaphore("s", 4, ttl=TTL), 2),
            client.rwlock("r", ttl=TTL).read(),
            client.lock("a", ttl=TTL),
        )
        await side.get((await side.get(both.acquire())).release())  # connected from here on
        side.trips()
        for _ in range(3):
            leases = await side.get(both.acquire())
            assert side.trips() == 1
            await side.get(leases.release())
            assert side.trips() == 1

    side.run(case())


@pytest.mark.parametrize("mode", ["async", "blocking"])
def test_a_wait_is_a_try_its_undoing_a_place_and_a_push(mode: Mode, counter: Counter) -> None:
    side = Side(mode, counter)

    async def case() -> None:
        holder, waiter = side.client(), side.client()
        lock = holder.lock("a", ttl=TTL)
        held = await side.get(lock.acquire())
        both = side.all_of(waiter.lock("b", ttl=TTL), waiter.lock("a", ttl=TTL))
        assert await side.get(both.try_acquire()) is None  # connected from here on
        waiter.hub.keeper.listen(5)
        side.trips()
        started = side.start(both.acquire)
        seen = 1
        while not (await side.get(lock.status())).waiting:
            seen += 1
        assert side.trips() == 3 + seen, "a try of both, what was granted given back, a place"
        await side.get(held.release())
        leases = await side.end(started)
        assert side.trips() == 2, "the release, and the try of the other"
        await side.get(leases.release())
        assert side.trips() == 1

    side.run(case())
