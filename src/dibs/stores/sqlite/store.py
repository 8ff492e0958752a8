"""The store: a URL, and what it can promise."""

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.port import Backend
from dibs.stores.sqlite.blocking import BlockingBackend
from dibs.stores.sqlite.site import Site


class SqliteStore:
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

    def backend(self, *, blocking: bool) -> Backend:
        """A connection for an event loop, or for one thread at a time."""
        if blocking:
            return BlockingBackend(self._site)
        from dibs.stores.sqlite.looped import (
            LoopBackend,  # asyncio costs a shell command 30 ms
        )

        return LoopBackend(self._site)
