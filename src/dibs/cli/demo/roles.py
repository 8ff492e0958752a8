"""What the workers of the demo do, each over and over; that they die is left to others."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from secrets import SystemRandom
from types import MappingProxyType

from dibs import AcquireTimeout, Client, DibsError

TTL = 6.0
"""Short, so that one sees how the lease of a dead worker runs out, in seconds."""

ORDERS = 3
GPUS = 3

PRINTER = "jobs/printer"
PLANNER = "jobs/planner"

DIRECTORIES = (b"shop/", b"pool/", b"jobs/")
"""Where all that they use lies."""

type Turn = Callable[[Client, str], Awaitable[None]]
"""One turn of a worker of that name."""

_dice = SystemRandom()


async def _cashier(client: Client, me: str) -> None:
    """Books an order, which others want to book as well; one of them goes by the scales."""
    number = _dice.randrange(ORDERS + 1)
    name = f"shop/order:{number}" if number else "shop/scales"
    async with client.lock(name, ttl=TTL, label=me, note=f"invoice {_dice.randrange(1000, 9999)}"):
        await _spend(0.5, 3)
    await _spend(0.5, 3)


async def _trainer(client: Client, me: str) -> None:
    """Takes a GPU of a pool, now and then two."""
    pool = client.semaphore("pool/gpu", GPUS, ttl=TTL, label=me)
    units = 2 if _dice.random() < 0.2 else 1
    async with pool.acquire(units=units, note=f"epoch {_dice.randrange(1, 90)}"):
        await _spend(2, 6)
    await _spend(1, 3)


async def _reader(client: Client, me: str) -> None:
    """Reads what must not be read while it is half written."""
    async with client.rwlock("shop/catalogue", ttl=TTL, label=me).read():
        await _spend(1, 3)
    await _spend(0.5, 2)


async def _editor(client: Client, me: str) -> None:
    """Writes it, and reads on itself."""
    async with client.rwlock("shop/catalogue", ttl=TTL, label=me, note="prices").write() as lease:
        await _spend(0.5, 2)
        await lease.downgrade()
        await _spend(1, 2)
    await _spend(4, 8)


async def _candidate(client: Client, me: str) -> None:
    """Stands for election, leads for a while, and steps down."""
    async with client.leader_election(
        PLANNER, ttl=TTL, renew_deadline=4, retry=1, label=me, note="plans the night shift"
    ):
        await _spend(20, 40)


async def _reporter(client: Client, me: str) -> None:
    """Writes the report, unless somebody has done so a moment ago."""
    with suppress(AcquireTimeout):
        async with client.task_lock("jobs/report", "8s", "20s", label=me, note="sales"):
            await _spend(1, 3)
    await _spend(2, 4)


async def _printer(client: Client, me: str) -> None:
    """Prints, for which there is one machine."""
    async with client.lock(PRINTER, ttl=TTL, label=me, note=f"page {_dice.randrange(1, 400)}"):
        await _spend(2, 5)
    await _spend(0.2, 1)


async def _forgetful(client: Client, me: str) -> None:
    """Takes longer than its ttl, never renews, and does not ask either: others get it meanwhile."""
    scales = client.lock("shop/scales", ttl=3, auto_renew=False, label=me, note="flour")
    lease = await scales.acquire()
    await _spend(5, 6)
    await lease.release()  # which comes too late
    await _spend(4, 8)


async def _spend(least: float, most: float) -> None:
    """Work, as it were."""
    await asyncio.sleep(_dice.uniform(least, most))


TURNS: Mapping[str, Turn] = MappingProxyType(
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
"""What each kind of worker does."""

_ORDER = (
    *("printer", "cashier", "candidate", "trainer", "reader", "forgetful", "cashier", "printer"),
    *("candidate", "editor", "trainer", "reporter", "cashier", "reader", "trainer", "candidate"),
    *("cashier", "reader", "reporter", "trainer"),
)
"""Who is there first; of more than twenty the same again."""


def workers(number: int) -> list[str]:
    """So many workers, such as `cashier-2`."""
    roles = [_ORDER[each % len(_ORDER)] for each in range(number)]
    return [f"{role}-{roles[: at + 1].count(role)}" for at, role in enumerate(roles)]


async def work(client: Client, me: str) -> None:
    """What a worker of that name does, for ever; trouble it sits out."""
    turn = TURNS[me.partition("-")[0]]
    while True:
        try:
            await turn(client, me)
        except DibsError:
            await asyncio.sleep(1)
