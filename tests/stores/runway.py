"""Where batches land, in tests of `submit`."""

import asyncio
from collections.abc import Sequence

from dibs.errors import DibsError
from dibs.model import Reply

type Landed = Sequence[Reply] | DibsError


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
