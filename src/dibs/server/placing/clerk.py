"""What becomes of the list of placements while servers run: the mover's to see to."""

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

from msgspec import structs

from dibs.server.placing.documents import Documents, read_listing, write_listing
from dibs.server.placing.listing import Listing
from dibs.server.placing.table import FRESH_ALONE, settled_after
from dibs.server.records.port import Conflict, Records


class Clerk:
    """One mover's."""

    def __init__(self, records: Records, now: Callable[[], float]) -> None:
        self._records = records
        self._now = now
        self._several_since = inf
        """Since when it has known that there are several placements, and that others may not."""

    async def is_known_to_all(self, listing: Listing) -> bool:
        """Whether no server can believe any more that there is one placement only.

        Such a one looks at no home, and would end a guard like any lease.
        """
        if not listing.was_lone:
            self._several_since = inf
            return True
        if listing.is_lone:
            return False
        self._several_since = min(self._several_since, self._now())
        if self._now() - self._several_since < settled_after(FRESH_ALONE):
            return False
        await self._write(was_lone=False)
        return True

    async def settle_default(self, found: Documents) -> None:
        """Where everything has a home, nothing needs the placement that was the default before."""
        home = found.home_of(b"")
        if home.phase == "settled" and home.place != found.listing.default:
            await self._write(default=home.place)

    async def _write(self, **changes: Any) -> None:
        """Change the list, unless somebody else has just done so."""
        listing, version = await read_listing(self._records)
        if listing is not None:
            with suppress(Conflict):
                await write_listing(self._records, structs.replace(listing, **changes), version)
