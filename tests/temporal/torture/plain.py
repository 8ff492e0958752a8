"""One plain program of the torture: takes turns, through `temporal://`, on what workflows want as well.

Started by `crew` as `python -m tests.temporal.torture.plain`, with its orders on standard input.
"""

import os
from functools import partial
from typing import Any

from dibs.errors import LeaseLost
from dibs.testing.torture.contender import Contender
from dibs.testing.torture.orders import Orders, read_orders
from dibs.testing.torture.turns import Demand, SemaphoreTurns, Turns
from dibs.testing.torture.worker import TortureWorker as Worker
from dibs.testing.torture.worker import work
from tests.temporal.torture.plan import POOLS
from tests.temporal.torture.records import lost
from tests.torture.in_line import LineContender

SHORT = (0.1, 1.0)
"""How long somebody in a hurry waits, in seconds."""
HURRIES = 0.1
"""The part of turns that are in a hurry."""
LENGTHS = ((0.02, 0.2), (4, 4)), ((0.3, 0.8), (1, 1))
"""How long steps of work take and how often: in seconds, and in ttls."""


class PlainContender(LineContender):
    """One task or thread."""

    def note_lost(self, key: bytes, loss: LeaseLost) -> None:
        self._recorder.record(lost(self.now(), key, loss.reason, os.getpid()))


class PoolTurns(SemaphoreTurns):
    """Turns on one of the pools."""

    def described(self, name: str) -> Any:
        self.capacity = POOLS[name]
        return self.client.semaphore(self.name, self.capacity, **self.how)

    def wanted(self, contender: Contender) -> Demand:
        assert isinstance(contender, PlainContender)
        draw = contender.draw
        units = draw.randint(1, self.capacity) if draw.random() < 0.3 else 1
        how: dict[str, Any] = {"units": units}
        if draw.random() < HURRIES:
            how["wait"] = draw.uniform(*SHORT)
        if draw.random() < 0.5:
            how["on_wait"] = partial(contender.note_in_line, self.key)
        return Demand(partial(self.resource.acquire, **how), {self.key: units})

    async def use(self, contender: Contender, *leases: Any) -> None:
        assert isinstance(contender, PlainContender)
        try:
            await contender.work(*leases, lengths=LENGTHS)
        except LeaseLost as loss:
            contender.note_lost(self.key, loss)
            raise


class PlainWorker(Worker):
    """What all contenders of a program share."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        self.contenders = [PlainContender(self, number) for number in range(orders.tasks)]

    def holds(self, primitive: str, change: int, *, done: bool = False) -> None:
        super().holds("semaphore", change, done=done)

    def resources(self, client: Any) -> list[Turns]:
        return [PoolTurns(client, name, self.orders) for name in POOLS]


if __name__ == "__main__":
    work(PlainWorker(read_orders()))
