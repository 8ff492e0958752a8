"""The connections of a store that consists of cells; the blocking ones work in the loop of a thread."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from weakref import WeakKeyDictionary

from dibs.clock import Clock, SystemClock
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.aio import LoopEnd
from dibs.stores.cas.cells import Cell, Cells
from dibs.stores.cas.clock import SKEW, StoreClock
from dibs.stores.cas.ledger import CasLedger
from dibs.stores.loop_thread import BlockingLoopConnection, LoopThread
from dibs.stores.port import (
    AsyncConnection,
    BlockingConnection,
    Deliver,
    Done,
    GiveUp,
    Store,
    as_dibs,
)

PARALLEL = 32
"""Batches that may be under way at a time. Each key is a call of its own, so nothing is won by waiting."""


class CasStore(Store):
    """A store that loads and swaps one value for each key. A subclass makes its `Cells`."""

    skew: float = SKEW
    """Seconds by which the clocks of the store's servers may differ."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = url
        self._clock = clock or SystemClock()
        self._shares: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()
        self._known: dict[bytes, Cell] = {}
        """See `CasLedger`. A store whose watch brings whole cells may put them here."""
        self._thread = LoopThread("dibs-store", url)
        on_fork(self)

    @abstractmethod
    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> Cells:
        """Make the cells for the running event loop, which tell `clock` the date of each answer.

        `now` is this process's own clock.
        """

    def _share(self) -> "_Shared":
        """Return what all connections in the running loop share."""
        loop = asyncio.get_running_loop()
        shared = self._shares.get(loop)
        if shared is None:
            store_clock = StoreClock(self.skew)
            cells = self.make_cells(store_clock, self._clock.now)
            ledger = CasLedger(cells, self._clock, store_clock, self._known)
            shared = self._shares[loop] = _Shared(cells, ledger, store_clock)
            shared.loop_end = LoopEnd(partial(self._part, loop, shared))
        return shared

    def _part(self, loop: asyncio.AbstractEventLoop, shared: "_Shared") -> None:
        """Close without waiting: the last connection was closed, or the loop ends."""
        self._shares.pop(loop, None)
        shared.ledger.close()
        shared.cells.part()

    async def _release(self, shared: "_Shared") -> None:
        """A connection has been closed."""
        shared.users -= 1
        if not shared.users:
            if shared.loop_end is not None:
                shared.loop_end.forget()
            self._part(asyncio.get_running_loop(), shared)
            await shared.cells.close()

    def after_fork(self) -> None:
        """In the child: forget what the parent's loops shared."""
        self._shares = WeakKeyDictionary()
        self._known.clear()

    def async_connection(self) -> AsyncConnection:
        return AsyncCasConnection(self._share, self._release, self.url)

    def blocking_connection(self) -> BlockingConnection:
        return BlockingLoopConnection(
            self._thread, lambda: AsyncCasConnection(self._share, self._release, self.url)
        )


class _Shared:
    """Parts that the connections of an event loop share."""

    def __init__(self, cells: Cells, ledger: CasLedger, store_clock: StoreClock) -> None:
        self.cells = cells
        self.ledger = ledger
        self.store_clock = store_clock
        self.users = 0
        self.loop_end: LoopEnd | None = None


class AsyncCasConnection:
    """See `AsyncConnection`."""

    parallel = PARALLEL

    def __init__(
        self,
        share: Callable[[], _Shared],
        release: Callable[[_Shared], Awaitable[None]],
        url: str,
    ) -> None:
        self._share = share
        self._release = release
        self._url = url
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.inbox: str = ""
        self._shared: _Shared | None = None
        self._deliver: Deliver | None = None
        self._end_subscription: Callable[[], None] | None = None
        self._is_deaf = False

    async def open(self) -> None:
        await self._enter().cells.open()

    def _enter(self) -> _Shared:
        if self._shared is None:
            self._shared = self._share()
            self._shared.users += 1
        return self._shared

    async def close(self) -> None:
        self._unsubscribe()
        shared, self._shared = self._shared, None
        if shared is not None:
            await self._release(shared)

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        try:
            shared = self._enter()
        except Exception as error:  # noqa: BLE001  # its settings can't be read, most often
            done(as_dibs(error))
            return _nothing
        if commands:
            return shared.ledger.submit(commands, done)
        done(())
        return _nothing

    async def apply_within(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        """Apply a batch. Raises `BackendUnavailable` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._enter().ledger.apply(commands)
        except TimeoutError:
            raise BackendUnavailable(
                f"{self._url} did not answer within {timeout:.3g} s; check the store and the network"
            ) from None

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await self._enter().ledger.scan(prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        """See `Cells.examine`; and how well the dates of the store's servers agree."""
        shared = self._enter()
        found = list(await shared.cells.examine())
        return [*found, _clock_finding(shared.store_clock)]

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        self._deliver = deliver
        if self._end_subscription is not None:
            return
        shared, inbox = self._enter(), self.inbox or token_hex(8)
        self._is_deaf = False
        end = await shared.cells.subscribe(inbox, self._receive)
        if not self._is_deaf:  # else it has ended already
            self._end_subscription = end
        shared.ledger.inboxes[inbox] = self._receive
        self.inbox = inbox

    def _receive(self, news: Sequence[Notification] | DibsError) -> None:
        if isinstance(news, DibsError):
            self._end_subscription, self._is_deaf = None, True
        if self._deliver is not None:
            self._deliver(news)

    def _unsubscribe(self) -> None:
        end, self._end_subscription = self._end_subscription, None
        if self._shared is not None:
            self._shared.ledger.inboxes.pop(self.inbox, None)
        self.inbox = ""
        if end is not None:
            end()

    def after_fork(self) -> None:
        if self._shared is not None:
            self._shared.cells.after_fork()
        self._reset()


def _clock_finding(clock: StoreClock) -> Finding:
    if not clock.disagreement:
        if clock.is_dated:
            told = "the store dates its answers: a lone try gets a dead holder's lease"
            return Finding("dates", "ok", told)
        told = "the store does not date its answers: only who waits gets a dead holder's lease"
        return Finding("dates", "note", told)
    told = f"the clocks of the store's servers differ by {clock.disagreement:.1f} s or more"
    if clock.is_dated:
        return Finding("dates", "ok", f"{told}, which is within the skew of {clock.skew:g} s")
    advice = (
        "set the servers' clocks by NTP: until then a lone try never gets a dead holder's lease"
    )
    return Finding("dates", "warning", f"{told}, more than the skew of {clock.skew:g} s", advice)


def _nothing() -> None:
    """Do nothing."""
