"""Signs: what servers leave for each other in a store, to be seen also while the records are away.

A sign is a lease that is never released, under a key that nobody can guess. Two are in use: that the
service has several placements, and that an API key was revoked.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import batched

from dibs.core.names import WAIT, fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Granted, Inspect, Status
from dibs.runtime.asyncio import AsyncRuntime
from dibs.runtime.port import Answer

KEPT = 30 * 86400.0
"""Seconds that a sign stands."""

AT_A_TIME = 256
"""Signs that are looked for in one round trip."""


class Signs:
    """Those in the stores at hand."""

    def __init__(self, stores: Callable[[], Iterable[AsyncRuntime]]) -> None:
        self._stores = stores

    async def put(self, name: str) -> None:
        """Have a sign stand in each store, or stand longer.

        Raises `BackendUnavailable` if a store fails, after all of them have answered.
        """
        wish = Acquire(WAIT + name.encode(), fingerprint(name), "the service", KEPT)
        calls = (store.call(wish) for store in self._stores())
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            if not isinstance(answer.reply, Granted):
                raise BackendUnavailable("the store did not take a sign of the service")

    async def standing(self, names: Iterable[str]) -> set[str]:
        """Which of these signs stand in any store. Raises `BackendUnavailable`."""
        found: set[str] = set()
        for store in self._stores():
            for some in batched(names, AT_A_TIME):
                told = await store.call_all([Inspect(WAIT + name.encode()) for name in some])
                for name, each in zip(some, told, strict=True):
                    if type(each) is not Answer or type(each.reply) is not Status:
                        raise BackendUnavailable("the store did not show the service's signs")
                    if each.reply.holders:
                        found.add(name)
        return found
