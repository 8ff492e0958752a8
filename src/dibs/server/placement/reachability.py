"""Which placements answer. Commands for one that does not fail at once, so that no client waits for it.

A client sends the commands for all placements over a few connections. While a store hangs, each command for
it would keep a connection busy until its time limit, and delay the answers of the other stores.

A slow command alone proves nothing. If a placement has answered nothing for a while, it gets a question that
every store answers quickly. If that fails too, the placement is *away* until it answers such a question.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from math import inf

from dibs.core.names import WAIT
from dibs.errors import BackendUnavailable, DibsError
from dibs.locks.requests import new_id
from dibs.model import Inspect
from dibs.runtime.aio import AsyncRuntime

log: logging.Logger = logging.getLogger("dibs.server")

SILENT_FOR = 1.0
"""Seconds without an answer after which a placement is asked; as long as that it has to answer."""

PAUSE = 0.25
"""Seconds between two tries to reach a placement that is away."""


class Reachability:
    """Watches the placements that commands are sent to."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sent: dict[str, dict[asyncio.Timeout, float]] = {}
        """When each call that is under way was sent, by placement."""
        self._answered: dict[str, float] = {}
        """When a placement answered last."""
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._away: dict[str, str] = {}
        """The last error of each placement that is away."""

    def check(self, place: str) -> None:
        """Raises `BackendUnavailable` if a placement is away."""
        if place in self._away:
            raise BackendUnavailable(f"the placement {place} does not answer: {self._away[place]}")

    def answered(self, place: str) -> None:
        """Note that a placement has just answered a command, be it with an error."""
        self._answered[place] = self._now()

    @asynccontextmanager
    async def asking(self, place: str, store: AsyncRuntime) -> AsyncGenerator[None]:
        """A call to a placement. Raises `BackendUnavailable` if it is away, or found to be so meanwhile."""
        self.check(place)
        sent, limit = self._sent.setdefault(place, {}), asyncio.timeout(None)
        try:
            async with limit:
                sent[limit] = self._now()
                if place not in self._watches:
                    self._watches[place] = asyncio.create_task(
                        self._watch(place, store), name=f"dibs placement {place}"
                    )
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            self.check(place)
            raise BackendUnavailable(f"the placement {place} did not answer") from None
        finally:
            sent.pop(limit, None)

    async def _watch(self, place: str, store: AsyncRuntime) -> None:
        """Ask a placement if it is silent, for as long as calls are under way."""
        sent = self._sent[place]
        try:
            while sent:
                quiet_since = max(min(sent.values()), self._answered.get(place, -inf))
                left = quiet_since + SILENT_FOR - self._now()
                if left > 0:
                    await asyncio.sleep(left)
                else:
                    await self._ask(place, store)
        finally:
            del self._watches[place]

    async def _ask(self, place: str, store: AsyncRuntime) -> None:
        """Ask a placement until it answers. If that takes too long it is away meanwhile."""
        try:
            async with asyncio.timeout(SILENT_FOR):
                await _answer(store)
        except (BackendUnavailable, TimeoutError) as error:
            self._away[place] = str(error) or f"nothing came for {2 * SILENT_FOR:g} s"
            log.warning("the placement %s does not answer: %s", place, self._away[place])
            for limit in self._sent[place]:
                if not limit.expired():
                    limit.reschedule(asyncio.get_running_loop().time())
            await self._wait_for_answer(place, store)
            log.warning("the placement %s answers again", place)
        self.answered(place)

    async def _wait_for_answer(self, place: str, store: AsyncRuntime) -> None:
        try:
            while True:
                try:
                    return await _answer(store)
                except BackendUnavailable as error:
                    self._away[place] = str(error)
                await asyncio.sleep(PAUSE)
        finally:
            del self._away[place]

    async def close(self) -> None:
        """Watch no more."""
        watches = tuple(self._watches.values())
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _answer(store: AsyncRuntime) -> None:
    """Wait for an answer of a store, be it an error. Raises `BackendUnavailable`."""
    try:
        await store.ready()
        await store.call(Inspect(WAIT + new_id().encode()))
    except BackendUnavailable:
        raise
    except DibsError:
        pass
