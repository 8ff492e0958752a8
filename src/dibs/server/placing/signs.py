"""Signs: what servers leave for each other in a store, to be seen also while the records are away.

A sign is a lease that is never released, under a key that nobody can guess. Two are in use: that the
service has several placements, and that an API key was revoked.
"""

from collections.abc import Iterable

from dibs.core.names import WAIT, fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Granted, Inspect, Status
from dibs.runtime.asyncio import AsyncRuntime
from dibs.runtime.port import Answer

KEPT = 30 * 86400.0
"""Seconds that a sign stands."""


async def put(store: AsyncRuntime, name: str) -> None:
    """Have a sign stand, or stand longer. Raises `BackendUnavailable`."""
    wish = Acquire(WAIT + name.encode(), fingerprint(name), "the service", KEPT)
    answer = await store.call(wish)
    if not isinstance(answer.reply, Granted):
        raise BackendUnavailable("the store did not take a sign of the service")


async def standing(store: AsyncRuntime, names: Iterable[str]) -> set[str]:
    """Which of these signs stand. Raises `BackendUnavailable`."""
    asked = list(names)
    found: set[str] = set()
    told = await store.call_all([Inspect(WAIT + name.encode()) for name in asked])
    for name, each in zip(asked, told, strict=True):
        if type(each) is not Answer or type(each.reply) is not Status:
            raise BackendUnavailable("the store did not show the signs of the service")
        if each.reply.holders:
            found.add(name)
    return found
