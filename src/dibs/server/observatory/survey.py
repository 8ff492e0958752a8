"""Walks through the whole picture: one walk for all who ask, in steps between which others go on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from dibs.server.observatory.sketch import Sketch

STEP = 2_000
"""So many are looked at in a row: a millisecond or two."""

SHARE = 20
"""What has taken a while is good for so many times that, so it takes little of the time, however many ask."""

type Lines = Sequence[tuple[int, bytes]]


class Survey:
    """What is known of all keys at once. Where they are many it may be some seconds old."""

    def __init__(self, sketch: Sketch, now: Callable[[], float]) -> None:
        self._sketch = sketch
        self._now = now
        self._walk: asyncio.Task[Lines] | None = None
        self._good_until = 0.0

    async def lines(self) -> Lines:
        """Where somebody waits, the longest line first: how many, as a negative, and the key."""
        walk, is_quick = self._walk, len(self._sketch) <= STEP
        if walk is None or (walk.done() and (is_quick or self._now() >= self._good_until)):
            walk = self._walk = asyncio.get_running_loop().create_task(self._measured())
        return await asyncio.shield(walk)  # others want it too, whoever goes

    async def _measured(self) -> Lines:
        began = self._now()
        found: list[tuple[int, bytes]] = []
        async for some in in_steps(self._sketch.all()):
            found += [(-len(each.places), each.key) for each in some if each.places]
        found.sort()
        self._good_until = self._now() + SHARE * (self._now() - began)
        return found


async def in_steps[T](items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The parts of a long list, between which others go on."""
    for at in range(0, len(items), STEP):
        yield items[at : at + STEP]
        await asyncio.sleep(0)
