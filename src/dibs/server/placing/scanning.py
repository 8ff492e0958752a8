"""Reading keys in their order from all places at a time."""

import asyncio
from dataclasses import replace

from dibs.model import Page, Status
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.guards import Guards
from dibs.server.placing.merging import one_page
from dibs.server.placing.table import Table
from dibs.server.placing.ways import Ways


class PlacedBackend:
    """As much of a `backends.port.Backend` as the service uses itself."""

    def __init__(self, ways: Ways, atlas: Atlas, guards: Guards) -> None:
        self._ways = ways
        self._atlas = atlas
        self._guards = guards

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """The next keys in use that begin with `prefix`, wherever they are."""
        table = self._atlas.table
        if table.is_lone:
            only = await self._ways.to(table.default.place)
            return await only.backend.scan(prefix, cursor, limit)
        names = sorted(table.places_of(prefix))
        pages = await asyncio.gather(
            *(self._page(name, table, prefix, cursor, limit) for name in names)
        )
        return one_page(pages, limit)

    async def _page(
        self, name: str, table: Table, prefix: bytes, cursor: bytes | None, limit: int
    ) -> Page:
        """What lives at one place, without guards, and without what is left there of what has moved."""
        runtime = await self._ways.to(name)
        page = await runtime.backend.scan(prefix, cursor, limit)
        items: list[Status] = []
        for status in page.items:
            home = table.home_of(status.key)
            if name not in home.places:
                continue
            if home.to and name == home.place:
                holders = self._guards.others(status.key, home.epoch, status.holders)
                status = replace(status, holders=holders)
            if status.holders or status.waiters:
                items.append(status)
        return Page(items, page.cursor)
