"""What each thing costs in round trips, as the servers count them, on both sides."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import pytest

from dibs.core.timing import HEARTBEAT_POSITIONS, claim_timeout, heartbeat_interval
from dibs.stores.port import MAX_BATCH
from tests.stores.round_trips import Counter, Mode, Side, counter_of

TTL = 30.0


@pytest.fixture(params=["redis", "postgres"])
def counter(request: pytest.FixtureRequest) -> Counter:
    return counter_of(request.param, request)


@pytest.fixture(params=["async", "blocking"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def side(mode: Mode, counter: Counter) -> Side:
    return Side(mode, counter)


async def held(side: Side, client: Any, names: Sequence[str]) -> list[Any]:
    """Leases on all of these; asyncio's are acquired together."""
    acquires = [client.lock(name, ttl=TTL).acquire for name in names]
    if side.mode == "blocking":
        return [acquire() for acquire in acquires]
    return [await started for started in [side.start(acquire) for acquire in acquires]]


async def let_go(side: Side, leases: Sequence[Any]) -> None:
    """Release them all; asyncio's together."""
    for started in [side.start(lease.release) for lease in leases] if side.mode == "async" else ():
        await started
    for lease in leases:
        await side.get(lease.release())


# ---- nobody contends ------------------------------------------------------------------------------


def test_an_acquire_is_one_round_trip_and_a_release_is_one(side: Side) -> None:
    async def case() -> None:
        lock = side.client().lock("a", ttl=TTL)
        await side.get((await side.get(lock.acquire())).release())  # connected from here on
        side.trips()
        for _ in range(5):
            lease = await side.get(lock.acquire())
            assert side.trips() == 1
            await side.get(lease.release())
            assert side.trips() == 1

    side.run(case())


def test_a_try_is_one_round_trip_also_when_it_is_refused(side: Side) -> None:
    async def case() -> None:
        lease = await side.get(side.client().lock("a", ttl=TTL).acquire())
        lock = side.client().lock("a", ttl=TTL)
        assert await side.get(lock.try_acquire()) is None  # connected from here on
        side.trips()
        assert await side.get(lock.try_acquire()) is None
        assert side.trips() == 1
        await side.get(lease.release())

    side.run(case())


# ---- somebody waits -------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]


async def queue_up(side: Side, holder: Any, waiter: Any) -> list[Any]:
    """One waits for each name, and its round trips were as few as can be."""
    started = []
    for name in NAMES:
        side.trips()
        started.append(side.start(waiter.lock(name, ttl=TTL).acquire))
        seen = 0

        async def waits(name: str = name) -> bool:
            return bool((await side.get(holder.status(name))).waiting)

        while not await waits():
            seen += 1
        assert side.trips() == 1 + (seen + 1), "it asked more than once for its place"
    return started


async def all_connected(side: Side, client: Any) -> None:
    """Have a client waited and claimed: threads begin to listen then, and the keeper connects."""
    lease = await side.get(client.lock("before", ttl=TTL).acquire())
    waiting = side.start(client.lock("before", ttl=TTL).acquire)
    while not (await side.get(client.status("before"))).waiting:
        pass
    await side.get(lease.release())
    granted = await side.end(waiting)
    side.clock.advance(2.0)
    await side.get(granted.release())


def test_a_queued_acquire_is_one_round_trip_and_a_push(side: Side) -> None:
    async def case() -> None:
        holder, waiter = side.client(), side.client()
        await all_connected(side, waiter)
        leases = await held(side, holder, NAMES)
        started = await queue_up(side, holder, waiter)
        granted = []
        side.trips()
        for lease, waiting in zip(leases, started, strict=True):
            await side.get(lease.release())
            granted.append(await side.end(waiting))
            assert side.trips() == 1, "the release alone: what was granted was pushed"
        await let_go(side, granted)

    side.run(case())


def test_claims_travel_in_a_batch(side: Side) -> None:
    async def case() -> None:
        holder, waiter = side.client(), side.client()
        await all_connected(side, waiter)
        leases = await held(side, holder, NAMES)
        started = await queue_up(side, holder, waiter)
        for lease in leases:
            await side.get(lease.release())
        granted = [await side.end(waiting) for waiting in started]
        window = max(lease.remaining for lease in granted)
        side.trips()
        side.clock.advance(2.0)  # more than a third of the window
        assert side.trips() == 1
        assert min(lease.remaining for lease in granted) > window, "claimed, for the whole ttl"
        await let_go(side, granted)

    side.run(case())


def test_whoever_releases_before_that_never_claims(side: Side) -> None:
    async def case() -> None:
        holder, waiter = side.client(), side.client()
        await all_connected(side, waiter)
        leases = await held(side, holder, NAMES)
        started = await queue_up(side, holder, waiter)
        side.trips()
        for lease, waiting in zip(leases, started, strict=True):
            await side.get(lease.release())
            await side.get((await side.end(waiting)).release())
        side.clock.advance(2.0)
        assert side.trips() == 2 * len(leases)

    side.run(case())


# ---- many are held --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, MAX_BATCH, MAX_BATCH + 1, 1100])
def test_renewals_travel_by_the_batch(side: Side, count: int) -> None:
    async def case() -> None:
        client = side.client()
        leases = await held(side, client, [f"k{number}" for number in range(count)])
        side.clock.advance(TTL / 3)  # the keeper has connected from here on
        for _ in range(2):
            side.trips()
            side.clock.advance(TTL / 3)
            assert side.trips() == ceil(count / MAX_BATCH)
            assert min(lease.remaining for lease in leases) > TTL / 2
        await let_go(side, leases)

    side.run(case())


WAITERS = HEARTBEAT_POSITIONS + 4
MAX_CLAIM_TIMEOUT = claim_timeout(TTL)
OFTEN = heartbeat_interval(MAX_CLAIM_TIMEOUT)
"""How often a place at the front of the queue speaks up."""
SELDOM = 2 * MAX_CLAIM_TIMEOUT
"""How often any other must."""
WATCHED = 2.5 * SELDOM
STEP = 0.25


async def line_up(side: Side, client: Any) -> list[Any]:
    """All wait, each in the place of its number; the front has come a moment before the others."""
    started = []
    others = len(side.clock._callbacks)
    for number in range(WAITERS):
        if number == HEARTBEAT_POSITIONS:
            side.clock.advance(STEP)
        started.append(side.start(client.lock("a", ttl=TTL).acquire))
        while (await side.get(client.status("a"))).waiting <= number:
            pass
        await asleep(side, others + number + 1)
    return started


async def asleep(side: Side, alarms: int) -> None:
    """Wait until all have set themselves an alarm again; with others' there are so many."""
    await side.until(lambda: len(side.clock._callbacks) >= alarms, "they don't sleep")


def test_only_the_front_of_a_queue_asks_often(side: Side) -> None:
    async def case() -> None:
        held = await side.get(side.client().lock("a", ttl=10 * TTL).acquire())
        started = await line_up(side, side.client())
        alarms = len(side.clock._callbacks)
        side.trips()
        for _ in range(int(WATCHED / STEP)):
            side.clock.advance(STEP)
            await asleep(side, alarms)
        often = int(WATCHED / OFTEN)
        # a loop's signs of life travel together, all of them or all but the first
        most = often * (2 if side.mode == "async" else HEARTBEAT_POSITIONS)
        rare = (WAITERS - HEARTBEAT_POSITIONS) * int(WATCHED / SELDOM)
        assert 0.8 * often <= side.trips() <= most + rare
        await side.get(held.release())
        for waiting in started:
            await side.get((await side.end(waiting)).release())

    side.run(case())
