"""How a server comes to its store, or to its stores."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from leasehold.runtime.asyncio import AsyncRuntime
from leasehold.server.audit import Audit
from leasehold.server.config import Placement
from leasehold.server.placing.atlas import Atlas
from leasehold.server.placing.desk import Desk
from leasehold.server.placing.documents import HOME
from leasehold.server.placing.guards import Guards
from leasehold.server.placing.home import Home
from leasehold.server.placing.mover import Mover
from leasehold.server.placing.placement import places_of
from leasehold.server.placing.runtime import PlacedRuntime
from leasehold.server.records.port import Records
from leasehold.server.secrets import derived


async def runtime_over(
    ways: Mapping[str, AsyncRuntime], records: Records, secret: bytes, fresh: float
) -> AsyncRuntime | PlacedRuntime:
    """The way to the stores of these placements, the default one first.

    A lone store in which everything has always been needs nobody to say where it is, and as nothing moves
    where there is one placement, a grant there needs no fresh table either.
    """
    default, first = next(iter(ways.items()))
    if len(ways) == 1 and not await records.all(HOME):
        return first
    atlas = Atlas(records, Home(default), first.now, fresh)
    await atlas.read()
    return PlacedRuntime(ways, atlas, Guards(derived(secret, "guards")))


@asynccontextmanager
async def placing(
    runtime: AsyncRuntime | PlacedRuntime,
    stores: Sequence[Placement],
    records: Records,
    audit: Audit,
    secret: bytes,
) -> AsyncGenerator[Desk]:
    """While it is entered, the table is kept fresh, and what is to move moves."""
    places = places_of(stores)
    if not isinstance(runtime, PlacedRuntime):
        yield Desk(records, audit, places, None)
        return
    probe = b"wait:" + derived(secret, "mover").hex().encode()
    mover = Mover(runtime, records, audit, places, probe=probe, every=runtime.atlas.every)
    tasks = [
        asyncio.create_task(runtime.atlas.keep(), name="leasehold atlas"),
        asyncio.create_task(mover.run(), name="leasehold mover"),
    ]
    try:
        yield Desk(records, audit, places, mover)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
