"""How a server comes to its store, or to its stores."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from dibs.errors import NotConfigured
from dibs.runtime.aio import AsyncRuntime
from dibs.server.audit import Audit
from dibs.server.config import Placement
from dibs.server.placing.address import address_of
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.choice import directory_shown
from dibs.server.placing.desk import Desk
from dibs.server.placing.documents import (
    Documents,
    read_all,
    read_listing,
    read_table,
    write_listing,
)
from dibs.server.placing.listing import Own, joined
from dibs.server.placing.markers import Markers
from dibs.server.placing.mover import SERVICE, Mover
from dibs.server.placing.placement import place_of
from dibs.server.placing.runtime import PlacedRuntime
from dibs.server.placing.ways import Ways
from dibs.server.records.port import Conflict, Records


def own_of(placement: Placement, *, nameless: bool, machine: str = "") -> Own:
    """A placement of the settings, to be compared. Raises `NotConfigured`.

    `machine` is the name of this one, where servers on others may go by the same records.
    """
    was = placement.was
    said = [was]  # as it is written down
    if "://" in was:
        with suppress(NotConfigured):  # what is written down need be no URL
            said.append(address_of(was, machine))
    return Own(place_of(placement), address_of(placement.url, machine), tuple(said), nameless)


async def join(
    records: Records,
    audit: Audit,
    own: Sequence[Own],
    ways: Mapping[str, AsyncRuntime],
    fresh: float,
) -> None:
    """Compare these placements with those that are written down, and write down what is new and there.

    Raises `NotConfigured` where they do not go together: see `listing`; and `BackendUnavailable` for a new
    one that can't be reached, as its URL may be misspelt, and it would be written down for good.
    """
    while True:
        listing, version = await read_listing(records)
        used = {} if listing is None else used_by(await read_all(records))
        after = joined(listing, own, fresh, used)
        if after == listing:
            return
        for address in after.stores - (listing.stores if listing else frozenset()):
            await ways[address].ready()
        if listing is not None:  # what stands there from the start is no change
            if (
                listing.is_lone and not after.is_lone
            ):  # told first to servers whose records are away
                only = [ways[address] for address in listing.stores & ways.keys()]
                for each in only:
                    await each.ready()
                await Markers(only.copy).put(listing.mark)
            places = {each.name: list(each.stores) for each in after.places}
            await audit.write(SERVICE, "placements changed", detail=places)
        with suppress(Conflict):  # another server came at the same time
            await write_listing(records, after, version)


def used_by(found: Documents) -> dict[str, str]:
    """What lives at which placement, or is on its way from or to it."""
    used: dict[str, str] = {}
    for directory, home in sorted(found.homes.items(), reverse=True):
        for place in filter(None, (home.place, home.to)):
            used[place] = directory_shown(directory)
    return used


async def runtime_over(
    ways: Mapping[str, AsyncRuntime], records: Records, fresh: float
) -> PlacedRuntime:
    """The way to the stores at these addresses, once they are written down."""
    first = next(iter(ways.values()))
    sent = first.now()
    table = await read_table(records, sent)
    atlas = Atlas(records, first.now, table, fresh, first)
    return PlacedRuntime(first, Ways(ways, table.listing), atlas)


@asynccontextmanager
async def placing(runtime: PlacedRuntime, records: Records, audit: Audit) -> AsyncGenerator[Desk]:
    """While it is entered, the table is kept fresh, and what is to move moves."""
    mover = Mover(runtime, records, audit)
    tasks = [
        asyncio.create_task(runtime.atlas.keep(), name="dibs atlas"),
        asyncio.create_task(mover.run(), name="dibs mover"),
    ]
    try:
        yield Desk(records, audit, runtime, mover)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
