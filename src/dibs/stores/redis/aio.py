"""An event loop's way to the server: a protocol of our own, since a whole client costs several times more."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from weakref import WeakSet

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Finding, Notification, Page
from dibs.process import on_fork
from dibs.stores.aio import BufferedLink, LoopEnd, resolve, submit_in_task
from dibs.stores.port import Deliver, Done, GiveUp
from dibs.stores.redis.connection import MORE, ReplyError, keep_alive, new_reader
from dibs.stores.redis.errors import broken
from dibs.stores.redis.ledger import CallContext
from dibs.stores.redis.pubsub import PING, PING_EVERY, new_inbox, received
from dibs.stores.redis.pubsub import subscribe as begin
from dibs.stores.redis.routing import Router
from dibs.stores.redis.scanning import Listings
from dibs.stores.redis.url import Endpoint, Settings

type Land = Callable[[list[Any] | Exception], None]
"""Takes the answers, or what went wrong."""


class LoopLink(BufferedLink):
    """See `Link`. What comes without having been asked for is handed to `take`, in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> None:
        super().__init__(loop)
        self.endpoint: Endpoint = endpoint
        self.has_functions: bool = True
        self.take: Callable[[Any], None] | None = None
        self.lost: Callable[[Exception], None] | None = None
        """Called once when it breaks, but not when it is closed by us."""
        self._asked: deque[tuple[Land, int]] = deque()
        """Who waits, and for how many answers."""
        self._answers: list[Any] = []
        """Those to the first of them, so far."""
        self._reader = new_reader()

    def ask(self, data: bytes, count: int, limit: float) -> asyncio.Future[list[Any]]:
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.launch(data, count, partial(resolve, future))
        timer = self._loop.call_later(limit, self._too_late, future)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def _too_late(self, future: asyncio.Future[list[Any]]) -> None:
        if not future.done():
            self._break(TimeoutError())

    def launch(self, data: bytes, count: int, land: Land) -> None:
        """Send commands at once, and have `land` called with their answers as soon as they are there."""
        if self.usable and self._transport is not None:
            self._asked.append((land, count))
            self._transport.write(data)
        else:
            land(ConnectionResetError("the connection is closed"))

    def send(self, data: bytes) -> None:
        """Send what has no answer of its own."""
        if self._transport is not None:
            self._transport.write(data)

    def close_if_idle(self) -> None:
        """Hang up, unless a caller waits for an answer."""
        if not self._asked:
            self.close()

    # -- what the loop calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other loops have their own classes
        keep_alive(transport.get_extra_info("socket"))

    def buffer_updated(self, nbytes: int) -> None:
        reader, asked = self._reader, self._asked
        try:
            reader.feed(self._buffer, 0, nbytes)
            while (reply := reader.gets()) is not MORE:
                if asked:
                    self._answers.append(reply)
                    if len(self._answers) == asked[0][1]:
                        self._land_first()
                elif self.take is not None:
                    self.take(reply)
        except Exception as error:  # noqa: BLE001  # whatever it was, nothing after it can be trusted
            self._break(error)

    def _land_first(self) -> None:
        (land, _), answers = self._asked.popleft(), self._answers
        self._answers = []
        land(answers)
        if self.parting:
            self._loop.call_soon(self.close_if_idle)

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error or ConnectionResetError("the server closed the connection"))

    # -- ends ---------------------------------------------------------------------------------------

    def _break(self, error: Exception) -> None:
        if self.usable:
            self._hang_up(error)
            if self.lost is not None:
                self.lost(error)

    def close(self) -> None:
        if self.usable:
            self._hang_up(ConnectionAbortedError("the connection was closed meanwhile"))

    def _hang_up(self, error: Exception) -> None:
        self._abort()
        asked, self._asked = self._asked, deque()
        for land, _ in asked:
            land(error)


class LoopDial:
    """Makes links in the running loop; see `Dial`."""

    def __init__(self) -> None:
        self._links: WeakSet[LoopLink] = WeakSet()
        self._parting = False

    async def __call__(self, settings: Settings, endpoint: Endpoint, timeout: float) -> LoopLink:
        loop = asyncio.get_running_loop()
        link = LoopLink(loop, endpoint)
        try:
            async with asyncio.timeout(timeout):
                if endpoint.path:
                    await loop.create_unix_connection(lambda: link, endpoint.path)
                else:
                    tls = settings.tls
                    await loop.create_connection(
                        lambda: link,
                        endpoint.host,
                        endpoint.port,
                        ssl=None if tls is None else tls(),
                        server_hostname=None if tls is None else endpoint.host,
                    )
        except BaseException:
            link.close()
            raise
        link.parting = self._parting
        self._links.add(link)
        return link

    def part(self, *, parting: bool = True) -> None:
        """From now on hang up as soon as nobody waits for an answer; or not any more.

        A loop that ends leaves no time for more, and asyncio would complain of a socket left open in it.
        """
        self._parting = parting
        for link in list(self._links):
            link.parting = parting
            if parting:
                link.close_if_idle()


class AsyncRedisConnection:
    """See `AsyncConnection`: one connection for commands, and one on which notifications arrive."""

    parallel = 2

    def __init__(self, settings: Settings, context: CallContext, listings: Listings) -> None:
        self.inbox: str = ""
        self._settings = settings
        self._context = context
        self._dial = LoopDial()
        self._router = Router(settings, self._dial, context, listings, self._hand_on, self._follow)
        self._deliver: Deliver = _to_nobody
        self._subscription: LoopSubscription | None = None
        self._loop_end: LoopEnd | None = None
        on_fork(self)

    async def open(self) -> None:
        self._dial.part(parting=False)
        if self._loop_end is None:
            self._loop_end = LoopEnd(self._part)
        await self._router.open()

    async def close(self) -> None:
        if self._loop_end is not None:
            self._loop_end.forget()
            self._loop_end = None
        self._router.close()
        self._unsubscribe()
        self.inbox = self._context.inbox = ""

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        """See `AsyncConnection.submit`. On a connection that stands, a batch needs no task."""
        link = self._router.link
        if not isinstance(link, LoopLink):
            return submit_in_task(self._router.apply(commands), done)
        give_up: GiveUp = link.close

        def land(found: list[Any] | Exception) -> None:
            nonlocal give_up
            if not isinstance(found, list):
                return done(broken(found, link.endpoint))
            if isinstance(
                found[0], ReplyError
            ):  # nothing was done, and the router may know a remedy
                give_up = submit_in_task(self._router.apply(commands), done)
                return None
            try:
                replies = self._router.read(found[0], commands)
            except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
                told = f"{link.endpoint} answered what can't be read: {error!r}"
                return done(BackendUnavailable(told))
            return done(replies)

        link.launch(self._router.request(link, commands), 1, land)
        return lambda: give_up()  # noqa: PLW0108  # it may be another one by then

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await self._router.scan(prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        return await self._router.examine()

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        self._deliver = deliver
        subscription = self._subscription
        if subscription is not None and subscription.error is None:
            return
        self._unsubscribe()
        self._dial.part(parting=False)
        inbox = self.inbox or new_inbox(self._settings)
        link = await self._router.dial()
        assert isinstance(link, LoopLink)
        subscription = LoopSubscription(link, inbox, self._hand_on)
        await subscription.begin(self._settings.connect_timeout)
        self._subscription = subscription
        self.inbox = self._context.inbox = inbox

    def _hand_on(self, news: Sequence[Notification] | DibsError) -> None:
        self._deliver(news)  # which may be another one by now

    def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.end()

    def _part(self) -> None:
        """The loop ends: leave no socket open behind it."""
        self._unsubscribe()
        self._dial.part()

    def _follow(self, endpoint: Endpoint) -> None:
        """The server is another one now, as after a failover: notifications come from there."""
        subscription = self._subscription
        if subscription is not None and subscription.link.endpoint != endpoint:
            subscription.give_up(f"the master is at {endpoint} now")

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here."""
        self._router.after_fork()
        self._loop_end = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.link.close_in_child()
        self.inbox = self._context.inbox = ""


def _to_nobody(_: object) -> None:
    """Nobody has subscribed."""


class LoopSubscription:
    """A connection on which one inbox's notifications arrive, and which is asked whether it still stands."""

    def __init__(self, link: LoopLink, inbox: str, deliver: Deliver) -> None:
        self.link: LoopLink = link
        self.error: DibsError | None = None
        self._inbox = inbox
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._heard = True
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, timeout: float) -> None:
        """Subscribe, and wait until that is confirmed. Raises the errors of `stores.port`."""
        self.link.take = self._take
        await begin(self.link, self._inbox, timeout)
        self.link.lost = self._lost
        self._timer = self._loop.call_later(PING_EVERY, self._beat)

    def _take(self, reply: Any) -> None:
        self._heard = True
        notifications = received(reply, self._inbox, self.link.endpoint)
        if notifications:
            self._deliver(notifications)

    def _beat(self) -> None:
        """Since the last beat something should have come, at least the answer to a ping."""
        if not self._heard:
            self.give_up("no sign of life")
            return
        self._heard = False
        self.link.send(PING)
        self._timer = self._loop.call_later(PING_EVERY, self._beat)

    def give_up(self, why: str) -> None:
        """Hang up, and let the listener know."""
        self.link.close()
        self._lost(ConnectionAbortedError(why))

    def _lost(self, error: Exception) -> None:
        self._stop()
        if not isinstance(error, DibsError):
            told = f"{self.link.endpoint}: the subscription broke: {error}"
            error, cause = BackendUnavailable(told), error
            error.__cause__ = cause
        self.error = error
        self._deliver(error)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Hang up."""
        self._stop()
        self.link.close()
