"""A subscription in an event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

from dibs.backends.redis.loop_link import LoopLink
from dibs.backends.redis.subscription import PING, PING_EVERY, Ear
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Wakeup


class LoopSubscription:
    """A connection on which one inbox's pushes arrive, and which is asked whether it is still there."""

    def __init__(
        self, link: LoopLink, inbox: str, hear: Callable[[list[Wakeup] | None], None]
    ) -> None:
        self.link = link
        self.error: DibsError | None = None
        self._hear = hear
        self._ear = Ear(inbox, link.endpoint)
        self._loop = asyncio.get_running_loop()
        self._confirmed: asyncio.Future[None] = self._loop.create_future()
        self._heard = True
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, timeout: float) -> None:
        """Subscribe, and wait until that is confirmed."""
        link = self.link
        link.take, link.lost = self._take, self._lost
        link.send(self._ear.request)
        try:
            async with asyncio.timeout(timeout):
                await self._confirmed
        except TimeoutError as error:
            self.end()
            raise BackendUnavailable(
                f"{link.endpoint} did not confirm the subscription in time"
            ) from error
        except BaseException:
            self.end()
            raise
        self._timer = self._loop.call_later(PING_EVERY, self._beat)

    def _take(self, reply: Any) -> None:
        self._heard = True
        wakeups = self._ear.hear(reply)
        if wakeups:
            self._hear(wakeups)
        elif self._ear.stands and not self._confirmed.done():
            self._confirmed.set_result(None)

    def _beat(self) -> None:
        """Since the last beat something should have come, at least the answer to a ping."""
        if not self._heard:
            self.give_up("no sign of life")
            return
        self._heard = False
        self.link.send(PING)
        self._timer = self._loop.call_later(PING_EVERY, self._beat)

    def give_up(self, why: str) -> None:
        """It is of no use any more, and whoever listens must know."""
        self.link.close()
        self._lost(ConnectionAbortedError(why))

    def _lost(self, error: Exception) -> None:
        if isinstance(error, DibsError):
            self.error = error
        else:
            self.error = BackendUnavailable(
                f"{self.link.endpoint}: the subscription broke: {error}"
            )
            self.error.__cause__ = error
        self._stop()
        if self._confirmed.done():
            self._hear(None)
        else:
            self._confirmed.set_exception(self.error)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Hang up."""
        self._stop()
        self.link.close()
