"""Fairness between API keys: who goes on to the store next, and how much one key may have under way.

Work of one sort shares a `FairQueue`. While there is room, work starts at once. After that each API key has
a queue of its own, and they are served in turn, so a flood by one key delays another by a few turns only.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from math import inf

from dibs.server.api.problems import ApiProblem

PATIENCE = 5.0
"""Seconds that work may wait for its turn."""


@dataclass(slots=True, eq=False)
class _Share:
    """What one API key has: the cost of its work under way, of that and what waits, and those who wait."""

    busy: int = 0
    total: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class FairQueue:
    """Room for work of one sort. The cost of work is the number of commands, items or bytes.

    Work starts while less than `most` is under way. One key has at most a quarter of `most` under way; work
    that costs more counts as a quarter there, so it runs alone. A key may have `per_key` under way and
    waiting; beyond that it is refused (429).
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
        """An async context for work of that cost. Raises `ApiProblem`: 429, 503."""
        return Turn(self, key_id, max(cost, 1))

    async def begin(self, key_id: str, cost: int) -> None:
        """Wait until it is this work's turn."""
        share = self._shares.get(key_id)
        if share is None:
            share = self._shares[key_id] = _Share()
        if share.total and share.total + cost > self._per_key:
            raise ApiProblem(
                "limit",
                f"this API key has {share.total} {self._what} in progress; its limit is {self._per_key:g}",
                retry_after=1,
            )
        share.total += cost
        part = min(cost, self._each_most)
        room = self.busy < self._most and share.busy + part <= self._each_most
        if room and not share.waiting and not self._next:
            share.busy += part
            self.busy += part
            return
        await self._wait(key_id, share, cost)

    def end(self, key_id: str, cost: int) -> None:
        """That work is done."""
        share = self._shares[key_id]
        part = min(cost, self._each_most)
        self.busy -= part
        share.busy -= part
        self._forget(key_id, share, cost)

    async def _wait(self, key_id: str, share: _Share, cost: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append((min(cost, self._each_most), turn))
        self._line_up(key_id, share)
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
                raise ApiProblem(
                    "overloaded",
                    f"the server is overloaded: {self._what} wait for more than {PATIENCE:g} s",
                    retry_after=1,
                ) from None
            raise

    def _line_up(self, key_id: str, share: _Share) -> None:
        """Give a key a turn if its first waiting work fits beside its work under way."""
        while share.waiting and share.waiting[0][1].done():
            share.waiting.popleft()  # it waits no more
        if share.waiting and share.busy + share.waiting[0][0] <= self._each_most:
            self._next.setdefault(key_id, share)
        else:
            self._next.pop(key_id, None)

    def _start_more(self) -> None:
        """Start work of one key after the other while there is room."""
        while self._next and self.busy < self._most:
            key_id, share = next(iter(self._next.items()))
            self._line_up(key_id, share)
            if self._next.pop(key_id, None) is None:
                continue
            part, turn = share.waiting.popleft()
            share.busy += part
            self.busy += part
            turn.set_result(None)
            self._line_up(key_id, share)  # behind the others

    def _forget(self, key_id: str, share: _Share, cost: int) -> None:
        share.total -= cost
        if not share.total:
            self._shares.pop(key_id, None)
        self._line_up(key_id, share)
        self._start_more()


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
