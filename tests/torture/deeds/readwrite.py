"""Readers-writer locks: read, write, and turn one into the other."""

from typing import Any

from dibs.core.names import fingerprint
from dibs.errors import Deadlock
from dibs.model import MANY
from tests.torture.deeds.locks import TTLS
from tests.torture.hand import Hand
from tests.torture.kinds import SimRWLock

NAMES = ("table", "index")


async def rwlock(hand: Hand) -> None:
    """Read or write; sometimes go on with the other."""
    name, ttl = hand.draw.choice(NAMES), hand.draw.choice(TTLS)
    both = hand.life.shared(SimRWLock, name, ttl=ttl, env_load=False)
    side = both.write() if hand.draw.random() < 0.3 else both.read()

    async def body(lease: Any) -> None:
        await use(hand, lease)
        for _ in range(hand.draw.choice((0, 0, 1, 2))):
            await turn(hand, lease)
            await use(hand, lease)

    await hand.hold(await hand.acquire(side), body)


async def use(hand: Hand, lease: Any) -> None:
    """Readers don't write."""
    length = hand.draw.choices((0.0, 0.02, 0.3 * lease.ttl, 1.5 * lease.ttl), (45, 45, 7, 3))[0]
    for _ in range(2):
        await hand.sleep(0.0 if hand.world.closing else length / 2)
        if not await hand.check(lease):
            return
        if lease.mode == "write":
            hand.write(lease)


async def turn(hand: Hand, lease: Any) -> None:
    if lease.mode == "write":
        await downgrade(hand, lease)
    else:
        await upgrade(hand, lease)


async def downgrade(hand: Hand, lease: Any) -> None:
    """From here on nobody believes that it writes, and once it is confirmed others read."""
    hand.tell("resized", lease, invoked=hand.engine.now, units=1, capacity=MANY)
    await lease._downgrade()
    lease.confirmed = lease._settling is None
    if (
        lease.confirmed and lease._stands
    ):  # past its deadline a late copy of our Acquire may hold, for nobody
        for holder in hand.world.network.peek(lease.key).holders:
            if holder.lease == fingerprint(lease._id):
                hand.tell("seen", lease, units=holder.units)


async def upgrade(hand: Hand, lease: Any) -> None:
    """Wait for the other readers, unless one of them waits for us."""
    invoked, key, token = hand.engine.now, lease.key.decode(), lease.token
    hand.tell("upgrading", lease)
    try:
        await lease._upgrade(hand.draw.choice((0.0, 5.0, None, None, None)))
    except Deadlock:
        hand.record("deadlock", key, invoked=invoked, lease=lease.called)
        raise
    if lease.token == token and not lease.confirmed:  # the store never heard of the last downgrade,
        await lease._downgrade()  # so that this is no new grant to it
    else:
        hand.tell("resized", lease, invoked=invoked, units=MANY, capacity=MANY)
