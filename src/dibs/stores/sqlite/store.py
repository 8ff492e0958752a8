"""The store: a URL, and what it promises."""

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.port import AsyncConnection, BlockingConnection, Store
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.sqlite.threads import BlockingSqliteConnection


class SqliteStore(Store):
    """Leases in a file on this machine, shared by all processes that open it.

    `clock` replaces the machine's, and `boot` its boot id (`manual` with a clock of your own).
    """

    connections: int | None = 1
    """Only one can write at a time, and it does not read again what it has written itself."""

    capabilities: Capabilities = Capabilities(
        scope="host",
        durable=True,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(self, url: str, *, clock: Clock | None = None, boot: str | None = None) -> None:
        self.url: str = url
        self._file = StoreFile(url, clock, boot)

    def async_connection(self) -> AsyncConnection:
        from dibs.stores.sqlite.aio import (
            AsyncSqliteConnection,  # asyncio costs a shell command 30 ms
        )

        return AsyncSqliteConnection(self._file)

    def blocking_connection(self) -> BlockingConnection:
        return BlockingSqliteConnection(self._file)
