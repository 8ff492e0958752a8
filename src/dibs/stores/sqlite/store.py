"""The store: a URL, and what it can promise."""

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.port import AsyncConnection, BlockingConnection, Store
from dibs.stores.sqlite.site import Site
from dibs.stores.sqlite.threads import BlockingSqliteConnection


class SqliteStore(Store):
    """Leases in a file on this machine, shared by all processes that open it.

    `clock` stands in for the machine's, and `boot` for its boot id (`manual` with a clock of your own);
    `datagrams=False` polls the file for changes instead of being woken.
    """

    connections = 1
    """Only one can write at a time, and it need not read again what it has written itself."""

    capabilities = Capabilities(
        scope="host",
        durable=True,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        boot: str | None = None,
        datagrams: bool = True,
    ) -> None:
        self.url = url
        self._site = Site.of(url, clock, boot)
        self._site.datagrams = datagrams

    def async_connection(self) -> AsyncConnection:
        from dibs.stores.sqlite.aio import (
            AsyncSqliteConnection,  # asyncio costs a shell command 30 ms
        )

        return AsyncSqliteConnection(self._site)

    def blocking_connection(self) -> BlockingConnection:
        return BlockingSqliteConnection(self._site)
