"""Giving ids up, wherever they may be. The service keeps no leases of its own."""

from dibs.runtime.port import Keeper
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.ways import Ways


class PlacedKeeper:
    """A `runtime.port.Keeper` over those of several stores."""

    def __init__(self, ways: Ways, atlas: Atlas, first: Keeper) -> None:
        self.watch, self.unwatch, self.held = first.watch, first.unwatch, first.held
        self._ways = ways
        self._atlas = atlas

    def abandon(
        self, key: bytes, lease_id: str, bury: float, keep_until: float | None = None
    ) -> None:
        """See `runtime.port.Keeper`."""
        found = self._ways.named.get(self._atlas.table.home_of(key).place)
        if found is not None:
            found.keeper.abandon(key, lease_id, bury, keep_until)
