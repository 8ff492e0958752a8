"""Where an event loop's wakeups lie until somebody fetches them."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from dibs.model import Wakeup

MAX_ARRIVED = 10_000
"""Wakeups that nobody fetches are dropped, the oldest first."""


class Mailbox:
    """Wakeups for one event loop, and a bell that any thread may ring."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.deliver_to: Callable[[Sequence[Wakeup]], None] | None = None
        """Whoever takes wakeups in as they arrive, instead of waiting for them."""
        self._loop = loop
        self._arrived: deque[Wakeup] = deque(maxlen=MAX_ARRIVED)
        self._rung = False
        self._reader: asyncio.Future[None] | None = None

    def add(self, wakeups: Sequence[Wakeup]) -> None:
        """Take in what has come. In the loop's own thread."""
        if not wakeups:
            return
        if self.deliver_to is not None:
            self.deliver_to(wakeups)
            return
        self._arrived.extend(wakeups)
        self._wake()

    def ring(self) -> None:
        """Let whoever waits go. In the loop's own thread."""
        self._rung = True
        self._wake()

    def nudge(self) -> None:
        """Let whoever waits go. Any thread."""
        try:
            self._loop.call_soon_threadsafe(self.ring)
        except RuntimeError:
            pass  # that loop is closed, and whoever waited in it has gone

    async def wait(self, timeout: float | None) -> Sequence[Wakeup]:
        """What has arrived; nothing after a ring and at the timeout."""
        if not self._arrived and not self._rung:
            await self._until_woken(timeout)
        self._rung = False
        found = list(self._arrived)
        self._arrived.clear()
        return found

    async def _until_woken(self, timeout: float | None) -> None:
        reader = self._reader = self._loop.create_future()
        alarm = None if timeout is None else self._loop.call_later(timeout, self._wake)
        try:
            await reader
        finally:
            if alarm is not None:
                alarm.cancel()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
