"""Reading keys in their order from all places at a time."""

import asyncio
from collections.abc import Sequence

from dibs.model import Page
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.table import Table
from dibs.server.placing.ways import Ways


class PlacedBackend:
    """As much of a `backends.port.Backend` as the service uses itself."""

    def __init__(self, ways: Ways, atlas: Atlas) -> None:
        self._ways = ways
        self._atlas = atlas

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """The next keys in use that begin with `prefix`, wherever they are."""
        table = self._atlas.table
        if table.is_lone:
            only = await self._ways.to(table.default.place)
            return await only.page(prefix, cursor, limit)
        names = sorted(table.places_of(prefix))
        pages = await asyncio.gather(
            *(self._page(name, table, prefix, cursor, limit) for name in names)
        )
        return _one_page(pages, limit)

    async def _page(
        self, name: str, table: Table, prefix: bytes, cursor: bytes | None, limit: int
    ) -> Page:
        """What lives at one place, without late copies of what has moved away from it."""
        runtime = await self._ways.to(name)
        page = await runtime.page(prefix, cursor, limit)
        return Page(
            [each for each in page.items if table.home_of(each.key).place == name], page.cursor
        )


def _one_page(pages: Sequence[Page], limit: int) -> Page:
    """The next keys of several places' pages, which all began behind the same key."""
    ends = [page.cursor for page in pages if page.cursor is not None]
    known_to = min(ends) if ends else None
    items = sorted(
        (
            status
            for page in pages
            for status in page.items
            if known_to is None or status.key <= known_to
        ),
        key=lambda status: status.key,
    )
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].key)
    return Page(items, known_to)
