"""The table of homes as one server keeps it: read again and again, and never believed for long."""

import asyncio
from collections.abc import Callable

from dibs.errors import BackendUnavailable, Corrupt, DibsError
from dibs.runtime.aio import AsyncRuntime
from dibs.server.background import repeat
from dibs.server.placing.documents import read_table
from dibs.server.placing.markers import Markers
from dibs.server.placing.table import FRESH_ALONE, READ_EVERY, Table
from dibs.server.records.port import Records


class Atlas:
    """See the module. The list of placements has the greatest `fresh` of all servers."""

    def __init__(
        self,
        records: Records,
        now: Callable[[], float],
        table: Table,
        fresh: float,
        first: AsyncRuntime,
    ) -> None:
        self.table = table
        self.fresh = fresh
        self.every = min(READ_EVERY, fresh / 6)
        self.on_change: Callable[[], None] = lambda: None
        """Called when something else stands in the table than before."""
        self._records = records
        self._now = now
        self._markers = Markers(lambda: (first,))
        """In the only store, while there is one."""
        self._revision: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._sent = 0
        self._known = 0

    @property
    def is_fresh(self) -> bool:
        """Whether grants may be acknowledged by the table."""
        table = self.table
        fresh = FRESH_ALONE if table.is_lone else self.fresh
        return self._now() - table.read_at < fresh

    def is_lone(self) -> bool:
        """Whether there is one store, and no other server can have begun to use another."""
        return self.table.is_lone and self.is_fresh

    @property
    def mark(self) -> int:
        """The number of readings sent so far: `was_read_since` compares with it."""
        return self._sent

    def was_read_since(self, mark: int) -> bool:
        """Whether the table is of a reading that was sent after that."""
        return self._known > mark

    async def read_since(self, mark: int) -> None:
        """Have it be so. All who want a reading share it. Raises like `read`."""
        while not self.was_read_since(mark):
            await self.read()

    async def read(self) -> None:
        """Read what is new, or wait for whoever does so already.

        Raises `BackendUnavailable`, `Corrupt`.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="dibs atlas reading")
        await asyncio.shield(self._reading)  # one who leaves takes it from nobody

    async def _read(self) -> None:
        self._sent += 1
        number = self._sent
        try:
            async with asyncio.timeout(max(2 * self.fresh, 1.0)):
                await self._ask()
        except (DibsError, TimeoutError) as error:
            if not self.table.is_lone:
                if isinstance(error, TimeoutError):
                    raise BackendUnavailable("the records take too long to answer") from error
                raise
            await self._ask_the_store()
        self._known = number

    async def _ask(self) -> None:
        sent = self._now()
        known, self._revision = self._revision, None  # after a failure nothing is taken for granted
        revision = await self._records.revision()
        if revision == known:
            self.table = self.table.aged(sent)
        else:
            await self._read_all(sent)
        self._revision = revision

    async def _ask_the_store(self) -> None:
        """The records are away: a service with one store needs them for no lock.

        Whoever adds a second placement puts a marker into the only store first. Without the marker, there is
        no second placement.
        """
        sent, mark = self._now(), self.table.listing.mark
        if await self._markers.standing((mark,)):
            self.table = self.table.aged(float("-inf"))
            raise BackendUnavailable("the records are away, and another placement was added")
        self.table = self.table.aged(sent)

    async def _read_all(self, sent: float) -> None:
        before, table = self.table, await read_table(self._records, sent)
        if table.version < before.version:
            raise Corrupt(
                "the records have lost information about where directories live. Nothing is granted, as a "
                "lock may be held in another store. Restart all servers once all leases so far have expired"
            )
        self.table = table
        if table.listing != before.listing:
            self.on_change()

    async def keep(self) -> None:
        """Read it for ever."""
        try:
            await repeat(self.read, self.every, "where directories live can't be read")
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait((self._reading,))
