"""Readings of where directories live: one at a time, shared by all who want one."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Command
from dibs.server.placement.markers import Markers
from dibs.server.placement.registry import Home, PlacementList, RecordedPlacement, write_list
from dibs.server.placement.table import RoutingTable, TableReader
from dibs.server.records import records_for
from dibs.session import StoreSession, session_for
from tests.runtime.stores import TappedStore

LISTING = PlacementList(
    (RecordedPlacement("one", ("a",)), RecordedPlacement("two", ("b",))), "one", 3.0
)


class Slow(TableReader):
    """Its readings are counted, and wait until they may go on."""

    asked = 0
    may_go_on: asyncio.Event

    async def until_asked(self) -> None:
        while not self.asked:
            await asyncio.sleep(0.001)

    async def _ask(self) -> None:
        self.asked += 1
        await self.may_go_on.wait()
        await super()._ask()


@pytest.fixture
async def reader() -> AsyncIterator[Slow]:
    records = records_for(f"memory://{uuid4()}")
    await records.open()
    await write_list(records, LISTING, 0)
    session = session_for(f"memory://{uuid4()}")
    table = RoutingTable(LISTING, 1, 0.0)
    found = Slow(records, time.monotonic, table, 3.0, session.loop_runtime())
    found.may_go_on = asyncio.Event()
    yield found
    await records.close()
    await session.close_loop()
    session.close()


async def test_all_who_want_a_reading_share_the_next_even_if_one_leaves(reader: Slow) -> None:
    mark = reader.mark
    first, *rest = (asyncio.create_task(reader.read_since(mark)) for _ in range(10))
    await reader.until_asked()
    first.cancel()
    await asyncio.wait((first,))
    reader.may_go_on.set()
    await asyncio.gather(*rest)
    await reader.read_since(mark)
    assert reader.asked == 1


async def test_a_reading_that_was_sent_before_is_not_enough(reader: Slow) -> None:
    before = asyncio.create_task(reader.read())
    await reader.until_asked()
    since = asyncio.create_task(reader.read_since(reader.mark))
    reader.may_go_on.set()
    await asyncio.gather(before, since)
    assert reader.asked == 2


async def test_a_reading_that_hangs_fails(reader: Slow) -> None:
    reader.fresh = 0.1
    with pytest.raises(BackendUnavailable, match="take too long"):
        await reader.read_since(reader.mark)
    assert reader.asked == 1
    reader.may_go_on.set()
    await reader.read_since(reader.mark)
    assert reader.table.home_of(b"lock:x") == Home("one")


def away(_: Sequence[Command]) -> None:
    raise BackendUnavailable("away")


@pytest.fixture
async def hubs() -> AsyncIterator[tuple[StoreSession, StoreSession]]:
    """One store that is well, and one that is not."""
    well, ill = session_for(f"memory://{uuid4()}"), StoreSession(broken := TappedStore(turns=1))
    broken.before = away
    yield well, ill
    for session in (well, ill):
        await session.close_loop()
        session.close()


async def test_a_marker_is_found_while_another_store_is_away(
    hubs: tuple[StoreSession, StoreSession],
) -> None:
    well, ill = (session.loop_runtime() for session in hubs)
    await Markers(lambda: (well,)).put("moved")
    assert await Markers(lambda: (ill, well)).standing(["moved", "other"]) == {"moved"}


async def test_a_marker_must_be_put_into_all_stores(
    hubs: tuple[StoreSession, StoreSession],
) -> None:
    well, ill = (session.loop_runtime() for session in hubs)
    with pytest.raises(BackendUnavailable):
        await Markers(lambda: (well, ill)).put("moved")
    assert await Markers(lambda: (well,)).standing(["moved"]) == {"moved"}
    with pytest.raises(BackendUnavailable):
        await Markers(lambda: (ill,)).standing(["moved"])
