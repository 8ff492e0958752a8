"""One client process of the torture: with the library, or without any (`--raw`).

Started by `crews` as `python -m tests.server.torture.worker`, with its orders on standard input.
"""

import argparse
import faulthandler
import signal
from dataclasses import replace
from functools import partial
from typing import Any

from dibs.testing.torture.contender import Contender
from dibs.testing.torture.orders import Orders, read_orders
from dibs.testing.torture.plan import primitive_of
from dibs.testing.torture.turns import (
    TURNS,
    Demand,
    LockTurns,
    RWLockTurns,
    SemaphoreTurns,
    Turns,
)
from dibs.testing.torture.worker import TortureWorker as Worker
from dibs.testing.torture.worker import work
from tests.server.torture import bugs
from tests.server.torture.raw import RawClient
from tests.torture.in_line import LineContender

REPORTING = 0.5
"""The part of calls with `on_wait`."""
LENGTHS = ((0.0, 0.002), (75, 15)), ((0.3, 0.8), (8, 2))
"""How long steps of work take without a library, and how often: in seconds, and in ttls."""


def reporting[T: Turns](turns: type[T]) -> type[T]:
    """The same turns, some of which note when they are in line."""

    def wanted(self: T, contender: Contender) -> Demand:
        demand = turns.wanted(self, contender)
        assert isinstance(contender, LineContender)
        if contender.draw.random() >= REPORTING:
            return demand
        acquire: Any = demand.acquire
        note = partial(contender.note_in_line, self.key)
        return demand._replace(acquire=partial(acquire, on_wait=note))

    return type(f"Reporting{turns.__name__}", (turns,), {"wanted": wanted})


WITH_LIBRARY = TURNS | {
    "lock": reporting(LockTurns),
    "semaphore": reporting(SemaphoreTurns),
}


class LibraryWorker(Worker):
    """One that uses the library."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        self.contenders = [LineContender(self, number) for number in range(orders.tasks)]

    def resources(self, client: Any) -> list[Turns]:
        names = self.orders.names
        return [WITH_LIBRARY[primitive_of(each)](client, each, self.orders) for each in names]


def raw(turns: type[Turns]) -> type[Turns]:
    """Without a library holds take longer, and there is no way from one side to the other."""

    async def use(self: Turns, contender: Contender, *leases: Any) -> None:
        (lease,) = leases
        await contender.work(lease, writes=lease.mode != "read", lengths=LENGTHS)

    return type(f"Raw{turns.__name__}", (turns,), {"use": use})


WITHOUT_LIBRARY = {
    "lock": raw(LockTurns),
    "semaphore": raw(SemaphoreTurns),
    "rwlock": raw(RWLockTurns),
}


class RawWorker(Worker):
    """One that speaks HTTP."""

    def resources(self, client: Any) -> list[Turns]:
        http = RawClient(self.orders.url, self.recorder, lambda: self.stopping)
        return [
            WITHOUT_LIBRARY[primitive_of(each)](http, each, self.orders)
            for each in self.orders.names
            if primitive_of(each) in WITHOUT_LIBRARY
        ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--bug", default="")
    chosen = parser.parse_args()
    orders = read_orders()
    if chosen.raw:
        orders = replace(orders, side="threads")
    faulthandler.register(signal.SIGUSR1)
    bugs.plant(chosen.bug)
    work(RawWorker(orders) if chosen.raw else LibraryWorker(orders))


if __name__ == "__main__":
    main()
