"""Turns on several locks at once, named in any order."""

from collections.abc import Sequence
from typing import Any

from dibs.testing.torture.hands import Hand
from dibs.testing.torture.turns.turns import Turns, Wish

PARTS = "abc"


class AllOfTurns(Turns):
    """Acquire two or three of three, check and write to all, release."""

    def described(self, name: str) -> Any:
        self._locks = [self.client.lock(f"{self.name}-{part}", **self.how) for part in PARTS]
        return self._locks[0]

    def wanted(self, hand: Hand) -> Wish:
        chosen = hand.draw.sample(self._locks, hand.draw.choice((2, 3)))
        together = hand.world.library.AllOf(*chosen)
        return Wish(together.acquire, {lock.key: 1 for lock in chosen})

    def leases(self, held: Any) -> Sequence[Any]:
        return tuple(held)
