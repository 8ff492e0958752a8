"""Turns on a readers-writer lock: read or write, and change from one to the other on the way."""

from typing import Any

from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock
from dibs.model import MANY
from dibs.testing.torture.hands import Hand
from dibs.testing.torture.turns.turns import Turns, Wish

PATIENCE = 0, 0.05, None
"""How long an upgrade waits for the other readers."""


class RWLockTurns(Turns):
    """Acquire for one of both, check, maybe change, check again, release; writers write."""

    capacity = MANY

    def described(self, name: str) -> Any:
        return self.client.rwlock(self.name, **self.how)

    def wanted(self, hand: Hand) -> Wish:
        if hand.draw.random() < 0.6:
            return Wish(self.resource.read().acquire, {self.key: 1})
        return Wish(self.resource.write().acquire, {self.key: MANY})

    async def use(self, hand: Hand, *leases: Any) -> None:
        (lease,) = leases
        await hand.work(lease, writes=lease.mode == "write")
        if hand.draw.random() < 0.5:
            await (self._downgrade if lease.mode == "write" else self._upgrade)(hand, lease)
            await hand.work(lease, writes=lease.mode == "write")

    async def _downgrade(self, hand: Hand, lease: Any) -> None:
        hand.shrinking(lease, units=1, capacity=MANY)  # first: it may be killed before the answer
        await hand.get(lease.downgrade())

    async def _upgrade(self, hand: Hand, lease: Any) -> None:
        invoked = hand.now()
        try:
            await hand.get(lease.upgrade(wait=hand.draw.choice(PATIENCE)))
        except (AcquireTimeout, Deadlock):
            return  # it reads on
        except BackendUnavailable:
            hand.cut_off()
            return
        hand.resized(lease, invoked, units=MANY, capacity=MANY)
