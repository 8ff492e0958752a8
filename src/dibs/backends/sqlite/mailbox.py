"""Where an event loop's wakeups arrive: from the socket, from its own commits, from other threads."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from dibs.backends.sqlite.post import Post
from dibs.model import Wakeup

MAX_ARRIVED = 10_000
"""Wakeups that nobody fetches are dropped, the oldest first."""


class Mailbox:
    """Wakeups for one event loop. It knows no backend, so that a backend can be dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, post: Post | None) -> None:
        self.post = post
        self.inbox = "" if post is None else post.inbox
        self._loop = loop
        self._arrived: deque[Wakeup] = deque(maxlen=MAX_ARRIVED)
        self._rung = False
        self._reader: asyncio.Future[None] | None = None
        self.deliver_to: Callable[[Sequence[Wakeup]], None] | None = None
        """Whoever takes wakeups in as they arrive, instead of waiting for them."""
        if post is not None:
            loop.add_reader(post.socket, self._read)

    def close(self) -> None:
        """Stop listening; whoever waits is let go."""
        if self.post is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self.post.socket)
            self.post.close()
        self._ring()

    # -- what arrives -------------------------------------------------------------------------------

    def _read(self) -> None:
        if self.post is not None:
            # One at a time: the loop comes back for more, and whom it wakes need not wait for them.
            self.add(self.post.receive(1))

    def add(self, wakeups: Sequence[Wakeup]) -> None:
        """Take in what is for us. In the loop's own thread."""
        if self.deliver_to is not None:
            if wakeups:
                self.deliver_to(wakeups)
            return
        self._arrived.extend(wakeups)
        if self._arrived:
            self._wake()

    def deliver(self, wakeups: Sequence[Wakeup], *, in_loop: bool = False) -> None:
        """See that each wakeup reaches its inbox, ours or another's. Any thread."""
        mine = self.inbox
        others = [wakeup for wakeup in wakeups if wakeup.inbox and wakeup.inbox != mine]
        if others and self.post is not None:
            self.post.send(others)
        if len(others) == len(wakeups):
            return
        own = [wakeup for wakeup in wakeups if wakeup.inbox == mine]
        if in_loop:
            self.add(own)
        else:
            self._in_loop(lambda: self.add(own))

    def nudge(self) -> None:
        """Let whoever waits go. Any thread."""
        self._in_loop(self._ring)

    def _in_loop(self, action: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            pass  # that loop is closed, and whoever waited in it has gone

    def _ring(self) -> None:
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- who waits for it ---------------------------------------------------------------------------

    async def wait(self, timeout: float | None) -> Sequence[Wakeup] | None:
        """What has arrived; nothing after a nudge, None at the timeout."""
        if not self._arrived and not self._rung:
            await self._until_woken(timeout)
        rung, self._rung = self._rung, False
        found = list(self._arrived)
        self._arrived.clear()
        return found if found or rung else None

    async def _until_woken(self, timeout: float | None) -> None:
        self._reader = self._loop.create_future()
        alarm = None if timeout is None else self._loop.call_later(timeout, self._wake)
        try:
            await self._reader
        finally:
            self._reader = None
            if alarm is not None:
                alarm.cancel()
