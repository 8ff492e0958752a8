"""Markers that servers leave for each other in the stores, so that they are seen without the records.

A marker is a lease that is never released, under a key that nobody can guess. One marks that the service
has several placements. The others mark revoked API keys.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import batched

from dibs.core.names import WAIT, fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Granted, Inspect, Status
from dibs.runtime.aio import AsyncRuntime
from dibs.runtime.port import TimedReply

KEPT = 30 * 86400.0
"""Seconds that a marker lasts."""

AT_A_TIME = 256
"""Markers that are looked for in one round trip."""


class Markers:
    """The markers in some stores."""

    def __init__(self, stores: Callable[[], Iterable[AsyncRuntime]]) -> None:
        self._stores = stores

    async def put(self, name: str) -> None:
        """Set a marker in each store, or extend it.

        Raises `BackendUnavailable` if a store fails, after all of them have answered.
        """
        wish = Acquire(WAIT + name.encode(), fingerprint(name), "the service", KEPT)
        calls = (store.call(wish) for store in self._stores())
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            if not isinstance(answer.reply, Granted):
                raise BackendUnavailable("the store did not take a marker of the service")

    async def standing(self, names: Iterable[str]) -> set[str]:
        """Return those of these markers that any store has.

        Each marker is in all stores, so one that answers is enough. Raises `BackendUnavailable` if none does.
        """
        wanted = tuple(names)
        looks = (self._standing_in(store, wanted) for store in self._stores())
        answers = await asyncio.gather(*looks, return_exceptions=True)
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not found:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        return set().union(*found)

    async def _standing_in(self, store: AsyncRuntime, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for some in batched(names, AT_A_TIME):
            told = await store.call_all([Inspect(WAIT + name.encode()) for name in some])
            for name, each in zip(some, told, strict=True):
                if type(each) is not TimedReply or type(each.reply) is not Status:
                    raise BackendUnavailable("the store did not show the service's markers")
                if each.reply.holders:
                    found.add(name)
        return found
