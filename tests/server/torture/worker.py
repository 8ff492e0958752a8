"""One client process of the torture: with the library, or without any (`--raw`).

`crew` starts it as `python -m tests.server.torture.worker`, with its orders on standard input.
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
from dibs.testing.torture.turns import TURNS, Demand, LockTurns, Turns
from dibs.testing.torture.worker import TortureWorker, work
from tests.server.torture import bugs
from tests.server.torture.raw import RawClient
from tests.torture.in_line import LineContender

REPORTING = 0.5
"""The part of calls with `on_wait`."""
LENGTHS = ((0.0, 0.002), (75, 15)), ((0.3, 0.8), (8, 2))
"""How long steps of work take without a library, and how often: in seconds, and in ttls."""


def reporting(turns: type[Turns]) -> type[Turns]:
    """The same turns, some of which note when they are in line."""

    def wanted(self: Turns, contender: LineContender) -> Demand:
        demand = turns.wanted(self, contender)
        if contender.draw.random() >= REPORTING:
            return demand
        acquire: Any = demand.acquire
        note = partial(contender.note_in_line, self.key)
        return demand._replace(acquire=partial(acquire, on_wait=note))

    return type(f"Reporting{turns.__name__}", (turns,), {"wanted": wanted})


class RawTurns(LockTurns):
    """Without a library holds take longer."""

    async def use(self, contender: Contender, *leases: Any) -> None:
        await contender.work(*leases, lengths=LENGTHS)


WITH_LIBRARY = TURNS | {each: reporting(TURNS[each]) for each in ("lock", "semaphore")}


class ServiceWorker(TortureWorker):
    def __init__(self, orders: Orders, *, is_raw: bool) -> None:
        super().__init__(replace(orders, side="threads") if is_raw else orders)
        self._is_raw = is_raw
        if not is_raw:
            self.contenders = [LineContender(self, number) for number in range(orders.tasks)]

    def resources(self, client: Any) -> list[Turns]:
        names = self.orders.names
        if not self._is_raw:
            return [WITH_LIBRARY[primitive_of(each)](client, each, self.orders) for each in names]
        client = RawClient(self.orders.url, self.recorder, lambda: self.stopping)
        locks = [each for each in names if primitive_of(each) == "lock"]
        return [RawTurns(client, each, self.orders) for each in locks]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--bug", default="")
    chosen = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    bugs.plant(chosen.bug)
    work(ServiceWorker(read_orders(), is_raw=chosen.raw))


if __name__ == "__main__":
    main()
