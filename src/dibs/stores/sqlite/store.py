"""The store: a URL, and what it promises."""

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.port import Backend
from dibs.stores.sqlite.blocking import BlockingBackend
from dibs.stores.sqlite.file import StoreFile


class SqliteStore:
    """Leases in a file on this machine, shared by all processes that open it.

    `clock` replaces the machine's, and `boot` its boot id (`manual` with a clock of your own).
    """

    connections = 1
    """Only one can write at a time, and it does not read again what it has written itself."""

    capabilities = Capabilities(
        scope="host",
        durable=True,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(self, url: str, *, clock: Clock | None = None, boot: str | None = None) -> None:
        self.url = url
        self._file = StoreFile(url, clock, boot)

    def backend(self, *, blocking: bool) -> Backend:
        """A connection for an event loop, or for one thread at a time."""
        if blocking:
            return BlockingBackend(self._file)
        from dibs.stores.sqlite.looped import (
            LoopBackend,  # asyncio costs a shell command 30 ms
        )

        return LoopBackend(self._file)
