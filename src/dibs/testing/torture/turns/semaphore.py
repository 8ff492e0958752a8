"""Turns on a semaphore: one unit, or several at once."""

from functools import partial
from typing import Any

from dibs.testing.torture.hands import Hand
from dibs.testing.torture.turns.turns import Turns, Wish

CAPACITY = 3


class SemaphoreTurns(Turns):
    """Acquire units, check and write for each slot, release."""

    capacity = CAPACITY

    def described(self, name: str) -> Any:
        return self.client.semaphore(self.name, CAPACITY, **self.how)

    def wanted(self, hand: Hand) -> Wish:
        units = hand.draw.choices((1, 2, 3), (6, 3, 1))[0]
        return Wish(partial(self.resource.acquire, units=units), {self.key: units})
