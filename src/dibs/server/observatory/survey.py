"""Walks through the whole picture: one walk for all who ask, in steps between which others go on."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain

from dibs.server.observatory.sketch import Sketch

STEP = 2_000
"""So many are looked at in a row: a millisecond or two."""

SHARE = 20
"""What has taken a while is good for so many times that, so it takes little of the time, however many ask."""

_SAMPLES = 16
"""So many keys of each part are looked at to find out where it ends."""


class Survey:
    """What is known of all keys at once. Where they are many it may be some seconds old."""

    def __init__(self, sketch: Sketch, now: Callable[[], float]) -> None:
        self._sketch = sketch
        self._keys = _Shared(self._sorted, now)
        self._lines = _Shared(self._measured, now)

    async def keys(self) -> Sequence[bytes]:
        """All keys in use, in their order."""
        return await self._keys.get(self._is_quick)

    async def lines(self) -> Sequence[tuple[int, bytes]]:
        """Where somebody waits, the longest line first: how many, as a negative, and the key."""
        return await self._lines.get(self._is_quick)

    @property
    def _is_quick(self) -> bool:
        return len(self._sketch) <= STEP

    async def _sorted(self) -> Sequence[bytes]:
        """Sorted in parts, each of them in one step."""
        keys = self._sketch.keys()
        ends = sorted(keys[:: STEP // _SAMPLES])[_SAMPLES::_SAMPLES]
        parts: list[list[bytes]] = [[] for _ in range(len(ends) + 1)]
        async for some in in_steps(keys):
            for key in some:
                parts[bisect_right(ends, key)].append(key)
        for part in parts:
            part.sort()
            await asyncio.sleep(0)
        return list(chain.from_iterable(parts))

    async def _measured(self) -> Sequence[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        async for some in in_steps(self._sketch.all()):
            found += [(-len(each.places), each.key) for each in some if each.places]
        found.sort()
        return found


class _Shared[T]:
    """What is made for all who want it meanwhile, and for a while after that."""

    def __init__(self, make: Callable[[], Awaitable[T]], now: Callable[[], float]) -> None:
        self._make = make
        self._now = now
        self._made: asyncio.Task[T] | None = None
        self._good_until = 0.0

    async def get(self, is_quick: bool) -> T:
        """`is_quick`: it is made that soon that no older one is of any use."""
        made = self._made
        if made is None or (made.done() and (is_quick or self._now() >= self._good_until)):
            made = self._made = asyncio.get_running_loop().create_task(self._make_one())
        return await asyncio.shield(made)  # others want it too, whoever goes

    async def _make_one(self) -> T:
        began = self._now()
        found = await self._make()
        self._good_until = self._now() + SHARE * (self._now() - began)
        return found


async def in_steps[T](items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The parts of a long list, between which others go on."""
    for at in range(0, len(items), STEP):
        yield items[at : at + STEP]
        await asyncio.sleep(0)
