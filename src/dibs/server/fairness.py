"""Fairness between API keys: who goes on to the store next, and how much one key may have under way.

Work of one sort shares a `FairQueue`. While there is room, work starts at once. After that each API key has
a queue of its own, and they are served in turn, so a flood by one key delays another by a few turns only.
"""

import asyncio
from collections import deque
from math import inf

from dibs.server.problems import Problem

PATIENCE = 5.0
"""Seconds that work may wait for its turn."""


class _Share:
    """What one API key has: the cost of its work under way, of that and what waits, and those who wait."""

    __slots__ = ("busy", "total", "waiting")

    def __init__(self) -> None:
        self.busy = 0
        self.total = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()


class FairQueue:
    """Room for work of one sort. The cost of work is the number of commands, items or bytes.

    Work starts while less than `most` is under way, and less than a quarter of it for the same key. A key
    may have `per_key` under way and waiting; beyond that it is refused (429).
    """

    def __init__(self, what: str, most: int, per_key: float = inf) -> None:
        self.busy = 0
        self._what = what
        self._most = most
        self._each_most = max(most // 4, 1)
        self._per_key = per_key
        self._shares: dict[str, _Share] = {}
        self._next: dict[str, _Share] = {}
        """Keys whose turn comes, in this order."""

    def turn(self, key_id: str, cost: int = 1) -> "Turn":
        """An async context for work of that cost. Raises `Problem`: 429, 503."""
        return Turn(self, key_id, cost)

    async def begin(self, key_id: str, cost: int) -> None:
        """Wait until it is this work's turn."""
        share = self._shares.get(key_id)
        if share is None:
            share = self._shares[key_id] = _Share()
        if share.total and share.total + cost > self._per_key:
            raise Problem(
                "limit",
                f"this key has {share.total} {self._what} under way, and may have {self._per_key:g}",
                retry_after=1,
            )
        share.total += cost
        if not share.waiting and not self._next and self._has_room(share):
            share.busy += cost
            self.busy += cost
            return
        await self._wait(key_id, share, cost)

    def end(self, key_id: str, cost: int) -> None:
        """That work is done."""
        share = self._shares[key_id]
        self.busy -= cost
        share.busy -= cost
        self._forget(key_id, share, cost)
        if share.waiting and share.busy < self._each_most:
            self._next.setdefault(key_id, share)
        self._start_more()

    async def _wait(self, key_id: str, share: _Share, cost: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append((cost, turn))
        if share.busy < self._each_most:
            self._next.setdefault(key_id, share)
        self._start_more()
        try:
            async with asyncio.timeout(PATIENCE):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # its turn came at that moment
                self.end(key_id, cost)
            else:
                self._forget(key_id, share, cost)
            if isinstance(error, TimeoutError):
                raise Problem(
                    "overloaded",
                    f"the server is busy: {self._what} wait for {PATIENCE:g} s and more",
                    retry_after=1,
                ) from None
            raise

    def _has_room(self, share: _Share) -> bool:
        return self.busy < self._most and share.busy < self._each_most

    def _start_more(self) -> None:
        """Start work of one key after the other while there is room."""
        while self._next and self.busy < self._most:
            key_id = next(iter(self._next))
            share = self._next.pop(key_id)
            while share.waiting:
                cost, turn = share.waiting.popleft()
                if turn.done():
                    continue  # it waits no more
                share.busy += cost
                self.busy += cost
                turn.set_result(None)
                break
            if share.waiting and share.busy < self._each_most:
                self._next[key_id] = share  # behind the others

    def _forget(self, key_id: str, share: _Share, cost: int) -> None:
        share.total -= cost
        if not share.total:
            self._shares.pop(key_id, None)
            self._next.pop(key_id, None)


class Turn:
    """One piece of work."""

    __slots__ = ("_cost", "_key_id", "_queue")

    def __init__(self, queue: FairQueue, key_id: str, cost: int) -> None:
        self._queue = queue
        self._key_id = key_id
        self._cost = cost

    async def __aenter__(self) -> None:
        await self._queue.begin(self._key_id, self._cost)

    async def __aexit__(self, *_: object) -> None:
        self._queue.end(self._key_id, self._cost)
