"""The asyncio connection to a service."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.aio import LoopEnd, submit_in_task
from dibs.stores.http.errors import broken
from dibs.stores.http.loop_link import AsyncHttpLink, AsyncHttpStream, dial
from dibs.stores.http.requests import findings
from dibs.stores.http.stream import MISSED_SOME, ReconnectDelay, ServerAffinity, nowhere
from dibs.stores.http.url import LARGEST, HttpSettings
from dibs.stores.http.wire import About
from dibs.stores.port import Deliver, Done, GiveUp
from dibs.stores.web.links import LinkPool
from dibs.stores.web.reading import Response

log = logging.getLogger("dibs")


class AsyncHttpConnection:
    """See `AsyncConnection`: one TCP connection for each request under way, and one for notifications."""

    parallel = 2

    def __init__(self, settings: HttpSettings, learn: Callable[[About], None]) -> None:
        self._settings = settings
        self._learn = learn
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.inbox = ""
        self._links = LinkPool(partial(dial, self._settings))
        self._stream: AsyncHttpStream | None = None
        self._loop_end: LoopEnd | None = None
        self._deliver: Deliver = _to_nobody
        self._reconnect = ReconnectDelay()
        self._affinity = ServerAffinity()

    async def open(self) -> None:
        self._links.part(parting=False)
        if self._loop_end is None:
            self._loop_end = LoopEnd(self._part)
        await self._about()

    async def close(self) -> None:
        if self._loop_end is not None:
            self._loop_end.forget()
            self._loop_end = None
        self.inbox = ""
        self._part()

    # -- requests -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        link = self._links.idle()
        if link is None:
            return submit_in_task(self._apply(commands), done)
        request = link.requests.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            return submit_in_task(self._apply(commands), done)
        link.launch(request, partial(self._landed, link, commands, done))
        return link.close

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply a batch over a new connection, or in parts that are not too large."""
        if not commands:
            return ()
        link = await self._links.take()
        request = link.requests.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            middle = len(commands) // 2
            return [*await self._apply(commands[:middle]), *await self._apply(commands[middle:])]
        return self._replies(link, await self._ask(link, request), commands)

    def _landed(
        self,
        link: AsyncHttpLink,
        commands: Sequence[Command],
        done: Done,
        found: Response | Exception,
    ) -> None:
        try:
            if isinstance(found, Exception):
                raise broken(found, self._settings)
            replies = self._replies(link, found, commands)
        except DibsError as error:
            done(error)
        except Exception as error:  # noqa: BLE001  # else the callers would wait until their timeout
            done(BackendUnavailable(f"{self._settings.shown}: what came can't be read: {error!r}"))
        else:
            done(replies)

    def _replies(
        self, link: AsyncHttpLink, answer: Response, commands: Sequence[Command]
    ) -> Sequence[Reply]:
        if self._affinity.is_elsewhere(commands, answer):
            link.close()
        try:
            return link.requests.replies(answer, len(commands))
        except Forbidden:
            link.close()  # the next one looks for the key again
            raise

    async def _ask(
        self, link: AsyncHttpLink, request: bytes, timeout: float | None = None
    ) -> Response:
        """Send a request and return its answer. Raises `DibsError`."""
        try:
            return await self._links.ask(link, request, timeout)
        except Exception as error:
            raise broken(error, self._settings, silent=link.silent) from error

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        link = await self._links.take()
        request = link.requests.scan(prefix, cursor, limit)
        return link.requests.page(await self._ask(link, request, self._settings.timeout))

    async def examine(self) -> Sequence[Finding]:
        """See `findings`."""
        about = await self._about()
        link = await self._links.take()
        answer = await self._ask(link, link.requests.limits(), self._settings.timeout)
        return findings(about, link.requests.ttls(answer), self._settings)

    async def _about(self) -> About:
        """Ask what the service is. This also checks the API key."""
        link = await self._links.take()
        answer = await self._ask(link, link.requests.about(), self._settings.timeout)
        try:
            about = link.requests.who(answer)
        except BaseException:
            link.close()
            raise
        self._learn(about)
        return about

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        """See `AsyncConnection`. Without a stream there are no notifications, and everything else works."""
        self._deliver = deliver
        if self._stream is not None and self._stream.error is None:
            return
        if self._stream is not None:
            self._end_stream()
            self._reconnect.failed()
        self._links.part(parting=False)
        await asyncio.sleep(self._reconnect.left)
        stream = AsyncHttpStream(self._settings, self._hear)
        try:
            await stream.begin()
        except BackendUnavailable as error:
            log.debug("no stream of %s: %s", self._settings.shown, error)
            self._reconnect.failed()
            self.inbox = self.inbox or nowhere()
            deliver(error)
        else:
            self._reconnect.succeeded()
            self._stream = stream
            self.inbox = stream.reader.inbox

    def _hear(self, notifications: list[Notification]) -> None:
        """Deliver notifications; an empty list says that the stream ended or missed some."""
        if notifications:
            self._deliver(notifications)
        stream = self._stream
        if stream is not None and stream.error is not None:
            self._deliver(stream.error)
        elif stream is not None and stream.reader.missed:
            stream.reader.missed = False
            self._deliver(BackendUnavailable(MISSED_SOME))

    def _part(self) -> None:
        """Close what is idle: the loop or this connection ends, and no socket may stay open."""
        self._end_stream()
        self._links.part()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    def after_fork(self) -> None:
        """Forget the parent's connections, in the child."""
        self._links.close_in_child()
        if self._stream is not None:
            self._stream.link.close_in_child()
        self._reset()


def _to_nobody(_: object) -> None:
    """Nobody has subscribed."""
