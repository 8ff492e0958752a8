"""The stores that one server can reach, by the names under which they are written down."""

import logging
from collections.abc import Mapping
from functools import reduce

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Capabilities
from dibs.runtime.aio import AsyncRuntime
from dibs.server.background import LogOnce
from dibs.server.placing.listing import Listing
from dibs.server.placing.placement import Place

log = logging.getLogger("dibs.server")


class Ways:
    """See the module. A store has its name by the list, whatever the settings of this server call it."""

    def __init__(self, by_address: Mapping[str, AsyncRuntime], listing: Listing) -> None:
        self.named: Mapping[str, AsyncRuntime] = {}
        self.places: tuple[Place, ...] = ()
        """The placements that are here, in the order of the list."""
        self._by_address = by_address
        self._complaints = LogOnce()
        self.go_by(listing)

    def go_by(self, listing: Listing) -> None:
        """The list is another one."""
        here = [
            (each, way)
            for each in listing.places
            for address, way in self._by_address.items()
            if address in each.stores
        ]
        self.named = {each.name: way for each, way in here}
        self.places = tuple(each.place for each, _ in here)
        for each in listing.places:
            if each.name not in self.named:
                self._complaints.warn(
                    f"the placement {each.name} ({each.stores[-1]})",
                    "it is not in this server's settings: what lives there can't be reached from here",
                )

    async def to(self, place: str) -> AsyncRuntime:
        """The way to a placement. Raises `BackendUnavailable` for one that is not here, or away."""
        found = self.named.get(place)
        if found is None:
            raise BackendUnavailable(
                f"this directory is stored at placement {place}, which is not configured on this server"
            )
        if not found.is_ready:
            await found.ready()
        return found

    async def ready(self, default: str) -> None:
        """Connect. The default placement has to be there; another may come later."""
        for name in self.named:
            try:
                await self.to(name)
            except DibsError as error:
                if name == default:
                    raise
                log.warning("the placement %s can't be reached: %s", name, error)

    @property
    def capabilities(self) -> Capabilities:
        """What all of them promise."""
        return reduce(_both, (each.capabilities for each in self._by_address.values()))


_WIDTH = {"process": 0, "host": 1, "cluster": 2}


def _both(one: Capabilities, other: Capabilities) -> Capabilities:
    """What both of them promise."""
    return Capabilities(
        one.scope if _WIDTH[one.scope] <= _WIDTH[other.scope] else other.scope,
        one.clock and other.clock,
        one.durable and other.durable,
        one.fenced and other.fenced,
        one.notifies and other.notifies,
        one.survives & other.survives,
        one.asked and other.asked,
    )
