"""The backend of an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.process import on_fork
from dibs.stores.port import Land
from dibs.stores.redis import examining, scanning
from dibs.stores.redis.cluster import router
from dibs.stores.redis.link import ReplyError
from dibs.stores.redis.loop_link import LoopDial, LoopLink
from dibs.stores.redis.scanning import Listings
from dibs.stores.redis.script import read_answer
from dibs.stores.redis.scripting import Terms
from dibs.stores.redis.server import Server
from dibs.stores.redis.settings import Endpoint, Settings
from dibs.stores.redis.subscription import PING, PING_EVERY, Ear, new_inbox
from dibs.stores.redis.trouble import broken

MAX_ARRIVED = 10_000
"""Wakeups that nobody fetches are dropped, the oldest first."""


class LoopBackend:
    """Two connections for one event loop: one for commands, one on which pushes arrive."""

    def __init__(self, settings: Settings, terms: Terms, listings: Listings) -> None:
        self.inbox = ""
        self._settings = settings
        self._terms = terms
        self._listings = listings
        self._dial = LoopDial()
        self._router = router(settings, self._dial, terms)
        self._router.arrived_at = self._follow
        self._launcher = (
            Launcher(self._router, terms, self._add) if isinstance(self._router, Server) else None
        )
        self._subscription: LoopSubscription | None = None
        self._deliver_to: Callable[[Sequence[Wakeup]], None] | None = None
        self._arrived: deque[Wakeup] = deque(maxlen=MAX_ARRIVED)
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        on_fork(self)

    async def open(self, *, listen: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        self._dial.part(parting=False)
        await self._router.open()
        if listen and not self.inbox:
            inbox = new_inbox(self._settings)
            await self._subscribe(inbox)
            self.inbox = self._terms.inbox = inbox

    async def close(self) -> None:
        self.inbox = self._terms.inbox = ""
        self._router.close()
        self._unsubscribe()
        self._ring()

    # -- commands -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        if not commands:
            return ()
        replies, wakeups = await self._router.apply(commands)
        if wakeups:
            self._add(wakeups)
        return replies

    def launch(self, commands: Sequence[Command], land: Land) -> Callable[[], None] | None:
        """Send a batch at once, and have `land` called in the loop: with its replies, or an error.

        What it returns gives the batch up, as at a time-out. None: it must go by `apply`.
        """
        return None if self._launcher is None else self._launcher.launch(commands, land)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await scanning.scan(
            self._listings, self._router.names, self.apply, prefix, cursor, limit
        )

    async def examine(self) -> Sequence[Finding]:
        """What to know about the server, or one of the Cluster's."""
        link = await self._router.dial()
        try:
            return await examining.examine(link, self._settings.holdoff)
        finally:
            link.close()

    # -- wakeups ------------------------------------------------------------------------------------

    def deliver_to(self, take: Callable[[Sequence[Wakeup]], None]) -> None:
        """Hand pushes to `take`, in the loop, as soon as they are read; `wakeups` gives none then."""
        self._deliver_to = take

    def _add(self, wakeups: Sequence[Wakeup]) -> None:
        if self._deliver_to is not None:
            self._deliver_to(wakeups)
        else:
            self._arrived.extend(wakeups)
            self._wake()

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        """What was pushed. Raises whenever pushes may have been missed, also once they come again."""
        if not self.inbox:
            return ()
        subscription = self._subscription
        if subscription is None:
            self._dial.part(parting=False)
            await self._subscribe(self.inbox)
            raise BackendUnavailable("notifications resumed; some may have been missed")
        if not (self._rung or self._arrived or subscription.error):
            await self._until_woken(timeout)
        self._rung = False
        if subscription.error is not None:
            self._unsubscribe()
            raise subscription.error
        found = list(self._arrived)
        self._arrived.clear()
        return found

    async def _until_woken(self, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = None if timeout is None else loop.call_later(timeout, self._wake)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._part()
            raise
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _ring(self) -> None:
        self._rung = True
        self._wake()

    def nudge(self) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._ring)
            except RuntimeError:
                pass  # that loop is closed, and whoever waited in it has gone

    # -- the subscription ---------------------------------------------------------------------------

    async def _subscribe(self, inbox: str) -> None:
        link = await self._router.dial()
        assert isinstance(link, LoopLink)
        subscription = LoopSubscription(link, inbox, self._hear)
        await subscription.begin(self._settings.connect_timeout)
        self._unsubscribe()
        self._subscription = subscription

    def _hear(self, wakeups: Sequence[Wakeup] | None) -> None:
        """Pushes; or None: there will be no more."""
        if wakeups is None:
            self._wake()
        else:
            self._add(wakeups)

    def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.end()

    def _follow(self, endpoint: Endpoint) -> None:
        """The server is another one now, as after a failover: pushes come from there."""
        subscription = self._subscription
        if subscription is not None and subscription.link.endpoint != endpoint:
            subscription.give_up(f"the master is at {endpoint} now")

    def _part(self) -> None:
        """Whoever listened was cancelled, as by a loop that ends: leave no socket open behind it."""
        self._unsubscribe()
        self._dial.part()

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here."""
        self._router.after_fork()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.link.close_in_child()
        self.inbox = self._terms.inbox = ""
        self._waiter = self._loop = None
        self._arrived.clear()


class Launcher:
    """Batches to one server that is connected, without a task: each lands as soon as its answer is read."""

    def __init__(
        self, server: Server, terms: Terms, deliver: Callable[[Sequence[Wakeup]], None]
    ) -> None:
        self._server = server
        self._terms = terms
        self._deliver = deliver

    def launch(self, commands: Sequence[Command], land: Land) -> Callable[[], None] | None:
        """Send a batch now; what gives it up, or None where there is no connection."""
        link = self._server.link
        if not isinstance(link, LoopLink) or not link.usable:
            return None
        landed = partial(self._landed, link, commands, land)
        link.launch(self._terms.request(commands), 1, landed)
        return link.close

    def _landed(
        self,
        link: LoopLink,
        commands: Sequence[Command],
        land: Land,
        found: list[Any] | Exception,
    ) -> None:
        if not isinstance(found, list):
            return land(broken(found, link.endpoint))
        answer = found[0]
        if isinstance(answer, ReplyError):
            return land(None)
        try:
            replies, wakeups = read_answer(answer, commands)
        except DibsError as error:
            return land(error)
        except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
            return land(
                BackendUnavailable(f"{link.endpoint} answered what can't be read: {error!r}")
            )
        if wakeups:
            self._deliver(wakeups)
        land(replies)


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
