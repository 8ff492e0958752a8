"""Workers of `dibs demo`, and the process in which they run until it is killed.

Started as `python -m dibs.cli.demo.worker`, with its orders on standard input, where `ps` does not see
the key.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from secrets import SystemRandom
from types import MappingProxyType

from dibs import AcquireTimeout, Client, DibsError, connect
from dibs.testing.leash import hold_to

TTL = 6.0
"""Seconds. Short, so that you can watch the lease of a dead worker run out."""

_dice = SystemRandom()


async def _cashier(client: Client, me: str) -> None:
    """Book an order that others want to book too. One of them uses the scales."""
    name = f"shop/order:{number}" if (number := _dice.randrange(4)) else "shop/scales"
    async with client.lock(name, ttl=TTL, label=me, note=f"invoice {_dice.randrange(1000, 9999)}"):
        await _spend(0.5, 3)
    await _spend(0.5, 3)


async def _trainer(client: Client, me: str) -> None:
    """Take one GPU of a pool, or sometimes two."""
    pool = client.semaphore("pool/gpu", 3, ttl=TTL, label=me)
    units = 2 if _dice.random() < 0.2 else 1
    async with pool.acquire(units=units, note=f"epoch {_dice.randrange(1, 90)}"):
        await _spend(2, 6)
    await _spend(1, 3)


async def _reader(client: Client, me: str) -> None:
    async with client.rwlock("shop/catalogue", ttl=TTL, label=me).read():
        await _spend(1, 3)
    await _spend(0.5, 2)


async def _editor(client: Client, me: str) -> None:
    async with client.rwlock("shop/catalogue", ttl=TTL, label=me, note="prices").write() as lease:
        await _spend(0.5, 2)
        await lease.downgrade()
        await _spend(1, 2)
    await _spend(4, 8)


async def _candidate(client: Client, me: str) -> None:
    """Stand for election, lead for a while, and step down."""
    async with client.leader_election(
        "jobs/planner", ttl=TTL, renew_deadline=4, retry=1, label=me, note="plans the night shift"
    ):
        await _spend(20, 40)


async def _reporter(client: Client, me: str) -> None:
    """Write the report, unless it was written a moment ago."""
    with suppress(AcquireTimeout):
        async with client.task_lock("jobs/report", "8s", "20s", label=me, note="sales"):
            await _spend(1, 3)
    await _spend(2, 4)


async def _printer(client: Client, me: str) -> None:
    note = f"page {_dice.randrange(1, 400)}"
    async with client.lock("jobs/printer", ttl=TTL, label=me, note=note):
        await _spend(2, 5)
    await _spend(0.2, 1)


async def _forgetful(client: Client, me: str) -> None:
    """Work for longer than the ttl without renewing, so that another worker gets the lock."""
    scales = client.lock("shop/scales", ttl=3, auto_renew=False, label=me, note="flour")
    lease = await scales.acquire()
    await _spend(5, 6)
    await lease.release()  # too late
    await _spend(4, 8)


async def _spend(least: float, most: float) -> None:
    await asyncio.sleep(_dice.uniform(least, most))


TURNS: Mapping[str, Callable[[Client, str], Awaitable[None]]] = MappingProxyType(
    {
        "cashier": _cashier,
        "trainer": _trainer,
        "reader": _reader,
        "editor": _editor,
        "candidate": _candidate,
        "reporter": _reporter,
        "printer": _printer,
        "forgetful": _forgetful,
    }
)
"""One turn of each kind of worker, given its name."""


async def _work(client: Client, me: str) -> None:
    turn = TURNS[me.partition("-")[0]]
    while True:
        try:
            await turn(client, me)
        except DibsError:
            await asyncio.sleep(1)


async def _work_together(url: str, workers: list[str]) -> None:
    async with connect(url) as client, asyncio.TaskGroup() as group:
        for each in workers:
            group.create_task(_work(client, each))


def main() -> None:
    """Read the orders, and work until killed."""
    orders = json.loads(sys.stdin.buffer.readline())
    hold_to(orders["parent"])
    logging.getLogger("dibs").addHandler(logging.NullHandler())  # the demo reports losses
    asyncio.run(_work_together(orders["url"], orders["workers"]))


if __name__ == "__main__":
    main()
