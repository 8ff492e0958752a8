"""A store without a clock, of cells in memory: the adapter alone, with dates that a test can set."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import floor
from typing import Any

from dibs.clock import Clock
from dibs.model import Capabilities, Finding, Notification
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.format import read_state, write_state
from dibs.stores.cas.store import CasStore


class Server:
    """What the store's server has: cells, who subscribed, and a clock.

    Its dates are rounded down to `resolution` seconds; 0: it dates no answer.
    """

    def __init__(self, clock: Clock, resolution: float = 1.0) -> None:
        self.clock = clock
        self.resolution = resolution
        self.cells: dict[bytes, tuple[int, bytes]] = {}
        self.revision = 0
        self.lock = threading.Lock()  # stores of several threads share the server
        self.subscribers: dict[str, Callable[[Sequence[Notification]], None]] = {}

    def date(self) -> float:
        """Seconds since 1970."""
        return floor(self.clock.stamp() / 1e6 / self.resolution) * self.resolution


class MemoryCells:
    """See `Cells`. What a server would have is in the store, and shared by all event loops."""

    def __init__(self, server: Server, clock: StoreClock, now: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._now = now

    def _answer(self) -> None:
        """The server's answer carries its date."""
        server, now = self._server, self._now()
        if server.resolution:
            self._clock.note(server.date(), server.resolution, now, now)

    async def open(self) -> None:
        self._answer()

    async def close(self) -> None:
        pass

    async def load(self, key: bytes) -> Cell:
        await asyncio.sleep(0)
        self._answer()
        return self._cell(key)

    def _cell(self, key: bytes) -> Cell:
        version, text = self._server.cells.get(key, (None, b""))
        return Cell(version, None if version is None else read_state(text, f"under {key!r}"))

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        await asyncio.sleep(0)
        self._answer()
        server = self._server
        with server.lock:
            found = self._cell(key)
            if found.version != version:
                raise SwapConflict(found)
            server.revision += 1
            revision = server.revision
            if change.state is None:
                server.cells.pop(key, None)
            else:
                server.cells[key] = (revision, write_state(change.state))
        for each in change.notifications:
            if each.inbox in server.subscribers:
                server.subscribers[each.inbox]([each])
        return revision

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def hand_over(news: Sequence[Notification]) -> None:
            with suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(receive, news)

        self._server.subscribers[inbox] = hand_over
        return lambda: self._server.subscribers.pop(inbox, None) and None

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        self._answer()
        after = sorted(
            key
            for key in self._server.cells
            if key.startswith(prefix) and (cursor is None or key > cursor)
        )
        page = after[:limit]
        return [(key, self._cell(key)) for key in page], page[-1] if len(after) > limit else None

    async def examine(self) -> Sequence[Finding]:
        return ()

    def part(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


class MemoryCellStore(CasStore):
    """A store of such cells."""

    capabilities = Capabilities(scope="process", clock=False, durable=True)

    def __init__(self, clock: Clock, server: Server | None = None) -> None:
        super().__init__("cells://memory", clock=clock)
        self._server = server or Server(clock)

    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> MemoryCells:
        return MemoryCells(self._server, clock, now)
