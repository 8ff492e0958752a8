"""Where launched batches land, in tests of stores that launch them."""

import asyncio
from collections.abc import Sequence

from leasehold.errors import LeaseholdError
from leasehold.model import Reply

type Landed = Sequence[Reply] | LeaseholdError | None


class Runway:
    """Where batches land."""

    def __init__(self) -> None:
        self.landed: list[Landed] = []
        self._news = asyncio.Event()

    def land(self, outcome: Landed) -> None:
        self.landed.append(outcome)
        self._news.set()

    async def wait(self, count: int) -> list[Landed]:
        async with asyncio.timeout(10):
            while len(self.landed) < count:
                self._news.clear()
                await self._news.wait()
        return self.landed
