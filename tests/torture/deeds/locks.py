"""Locks: alone, and several at a time."""

from typing import Any

from dibs.errors import Deadlock
from tests.torture.hand import Hand
from tests.torture.kinds import SimLock

TTLS = (0.6, 2.0, 10.0)
NAMES = ("a", "b", "c")
DELAY = 1.5
"""Of the lock "slow"."""


def one(hand: Hand, name: str) -> Any:
    return hand.life.shared(SimLock, name, ttl=hand.draw.choice(TTLS), env_load=False)


async def lock(hand: Hand) -> None:
    """One of a few."""
    await hand.hold(await hand.acquire(one(hand, hand.draw.choice(NAMES))))


async def nested(hand: Hand) -> None:
    """Two, always in the same order."""
    first, second = sorted(hand.draw.sample(NAMES, 2))

    async def inside(lease: Any) -> None:
        await hand.hold(await hand.acquire(one(hand, second)))
        if await hand.check(lease):
            hand.write(lease)

    await hand.hold(await hand.acquire(one(hand, first)), inside)


async def crossed(hand: Hand) -> None:
    """Two, in any order: who would wait for each other for ever are told so."""
    options = {"ttl": hand.draw.choice(TTLS), "env_load": False}
    first, second = (
        hand.life.shared(SimLock, name, **options) for name in hand.draw.sample(("x", "y"), 2)
    )

    async def inside(lease: Any) -> None:
        hand.tell("crossing", lease)
        try:
            await hand.hold(await hand.acquire(second, wait=None))
        except Deadlock:
            hand.tell("crossed", lease)

    await hand.hold(await hand.acquire(first), inside)


async def reentrant(hand: Hand) -> None:
    """One, twice over; given up in any order, and held until the last."""
    options = {"ttl": hand.draw.choice(TTLS), "reentrant": True, "env_load": False}
    lock = hand.life.shared(SimLock, "again", **options)
    outer = await hand.acquire(lock)

    async def inside(lease: Any) -> None:
        invoked = hand.engine.now
        inner = await lock._acquire()
        if inner is not lease:  # the first was lost meanwhile
            hand.granted(inner, invoked)
            await hand.hold(inner)
            return
        try:
            await hand.use(inner)
        finally:
            await inner._release()
        await hand.use(lease)

    await hand.hold(outer, inside)


async def delayed(hand: Hand) -> None:
    """One that stays closed for a while when its holder was not heard of again."""
    options = {"ttl": hand.draw.choice(TTLS[:2]), "lock_delay": DELAY, "env_load": False}
    await hand.hold(await hand.acquire(hand.life.shared(SimLock, "slow", **options)))
