"""A waiter sends no more heartbeats than its position demands: counted over 25 s of the clients' time."""

from typing import Any

import pytest

from dibs.core.timing import HEARTBEAT_POSITIONS, claim_timeout, heartbeat_interval
from tests.stores.round_trips import Counter, Side, counter_of

TTL = 30.0
WAITERS = HEARTBEAT_POSITIONS + 4
MAX_CLAIM_TIMEOUT = claim_timeout(TTL)
OFTEN = heartbeat_interval(MAX_CLAIM_TIMEOUT)
"""How often a place at the front of the queue speaks up."""
SELDOM = 2 * MAX_CLAIM_TIMEOUT
"""How often any other must."""
WATCHED = 2.5 * SELDOM
STEP = 0.25


@pytest.fixture(params=["redis", "postgres"])
def counter(request: pytest.FixtureRequest) -> Counter:
    return counter_of(request.param, request)


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest, counter: Counter) -> Side:
    return Side(request.param, counter)


async def queue_up(side: Side, client: Any) -> list[Any]:
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
        started = await queue_up(side, side.client())
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
