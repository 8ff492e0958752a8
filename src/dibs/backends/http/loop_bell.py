"""What wakes the one task that listens: something that has come, a nudge, or time."""

import asyncio


class LoopBell:
    """Used in one event loop; any thread may ring it."""

    def __init__(self) -> None:
        self.rung = False
        """Somebody rang since this was last set back."""
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """The running loop is the one."""
        self._loop = asyncio.get_running_loop()

    async def wait(self, timeout: float | None) -> None:
        """Until it wakes us, or the time is over."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = None if timeout is None else loop.call_later(timeout, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def wake(self) -> None:
        """There is something to see."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def ring(self) -> None:
        """Wake whoever waits, now or next."""
        self.rung = True
        self.wake()

    def ring_from_anywhere(self) -> None:
        """The same, from any thread or signal handler."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.ring)
            except RuntimeError:
                pass  # that loop is closed, and whoever waited in it has gone
