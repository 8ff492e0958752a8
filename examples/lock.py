"""One at a time: three tasks pay one order, and a method that holds a lock calls one that needs it.

`python examples/lock.py`

Prints: order 42 is paid by task 1
Prints: order 42 was paid before task 2 came
Prints: order 42 was paid before task 3 came
Prints: 12 apples counted under one token
Prints: order:42 is held by …/payments
"""

import asyncio
import os
import tempfile
from pathlib import Path

from dibs import AcquireTimeout, Client, connect

paid: set[int] = set()


async def pay(client: Client, order: int, task: int) -> None:
    """Whoever comes later waits for its turn, and finds the work done."""
    async with client.lock(f"order:{order}", ttl="30s", wait="10s", label="payments") as lease:
        if order in paid:
            print(f"order {order} was paid before task {task} came")
            return
        await asyncio.sleep(0.05)
        lease.ensure(needs="2s")  # right before each step that relies on it
        paid.add(order)
        print(f"order {order} is paid by task {task}")


class Stock:
    """Methods that need the same lock, and call each other."""

    def __init__(self, client: Client) -> None:
        self._lock = client.lock("stock", reentrant=True)
        self.tokens: set[int] = set()
        self.apples = 0

    async def add(self, number: int) -> None:
        """Needs the lock, and acquires it if nobody around it has."""
        async with self._lock as lease:
            self.tokens.add(lease.token)
            self.apples += number

    async def take_in(self, boxes: list[int]) -> None:
        """Holds the lock for all boxes."""
        async with self._lock:
            for box in boxes:
                await self.add(box)


async def main(url: str) -> None:
    async with connect(url) as client:
        await asyncio.gather(*(pay(client, 42, task) for task in (1, 2, 3)))
        stock = Stock(client)
        await stock.take_in([3, 4, 5])
        assert len(stock.tokens) == 1
        print(f"{stock.apples} apples counted under one token")
        async with client.lock("order:42", label="payments"):
            try:
                await asyncio.create_task(client.lock("order:42", wait="100ms").acquire())
            except AcquireTimeout as busy:
                print(busy)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        implicit = f"sqlite:///{Path(folder) / 'leases.db'}"
        asyncio.run(main(os.environ.get("DIBS_URL", implicit)))
