"""A reentrant lock, and whether it is free."""

from typing import Any

from tests.primitives.worlds import World


def lock_of(w: World, client: Any = None, **options: Any) -> Any:
    return (client or w.client).lock("a", reentrant=True, **options)


async def free(w: World) -> bool:
    """As others see it."""
    lease = await w.get(w.another().lock("a").try_acquire())
    if lease is not None:
        await w.get(lease.release())
    return lease is not None
