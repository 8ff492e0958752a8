"""Semaphores: several units at a time, and a capacity that callers do not agree about."""

from dibs.errors import DibsError
from tests.torture.deeds.locks import TTLS
from tests.torture.hand import Hand
from tests.torture.kinds import SimSemaphore


async def semaphore(hand: Hand) -> None:
    """One or two of three."""
    await take(hand, "pool", 3, hand.draw.randint(1, 2), most=3)


async def elastic(hand: Hand) -> None:
    """One whose capacity is another one each time. Whoever waits may be granted under somebody else's."""
    capacity = hand.draw.randint(2, 4)
    try:
        await take(hand, "elastic", capacity, hand.draw.randint(1, capacity), most=4)
    except DibsError as error:
        if type(error) is not DibsError or "cannot acquire" not in str(error):
            raise


async def take(hand: Hand, name: str, capacity: int, units: int, most: int) -> None:
    ttl = hand.draw.choice(TTLS)
    primitive = hand.life.shared(SimSemaphore, name, capacity, ttl=ttl, env_load=False)
    await hand.hold(await hand.acquire(primitive, units, most=most))
