"""The table of homes as one server keeps it: read again and again, and never believed for long."""

import asyncio
import logging
from collections.abc import Callable

from leasehold.errors import LeaseholdError
from leasehold.server.placing.documents import read_table
from leasehold.server.placing.home import Home
from leasehold.server.placing.table import READ_EVERY, Table
from leasehold.server.records.port import Records

log = logging.getLogger("leasehold.server")


class Atlas:
    """See the module. All servers of one service must be of one `fresh`."""

    def __init__(
        self,
        records: Records,
        default: Home,
        now: Callable[[], float],
        fresh: float,
    ) -> None:
        self.table = Table(default)
        self.fresh = fresh
        self.every = min(READ_EVERY, fresh / 6)
        self._records = records
        self._now = now
        self._revision: int | None = None

    @property
    def age(self) -> float:
        """How old the table is."""
        return self._now() - self.table.read_at

    async def read(self) -> None:
        """Ask whether there is news. Raises `BackendUnavailable`."""
        sent = self._now()
        revision = await self._records.revision()
        if revision == self._revision:
            self.table = self.table.aged(sent)
        else:
            self.table = await read_table(self._records, self.table.default, sent)
            self._revision = revision

    async def keep(self) -> None:
        """Read it for ever."""
        told = False
        while True:
            await asyncio.sleep(self.every)
            try:
                async with asyncio.timeout(max(2 * self.fresh, 1.0)):
                    await self.read()
                told = False
            except (LeaseholdError, TimeoutError) as error:
                if not told:
                    log.warning("where directories live can't be read: %s", error)
                told = True
            except Exception:
                log.exception("reading where directories live failed")
