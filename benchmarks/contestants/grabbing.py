"""What a hand-off is made of: an acquire that answers with the release."""

from collections.abc import Awaitable, Callable
from typing import Any

type Release = Callable[[], Awaitable[object]]
type Grab = Callable[[], Awaitable[Release]]
type BlockingGrab = Callable[[], Callable[[], object]]


def grabbing(lock: Any) -> Grab:
    """Of a lock with the methods that asyncio's own has."""

    async def grab() -> Release:
        await lock.acquire()
        release: Release = lock.release
        return release

    return grab
