"""The connections of an event loop to a service: for requests, and for notifications."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Finding, Page
from dibs.process import on_fork
from dibs.stores.aio import LoopEnd, submit_in_task
from dibs.stores.http.calls import HttpCalls, is_too_large
from dibs.stores.http.errors import broken, unreachable
from dibs.stores.http.requests import Requests
from dibs.stores.http.stream import (
    MISSED_SOME,
    NotificationReader,
    ReconnectDelay,
    nowhere,
)
from dibs.stores.http.url import HttpSettings
from dibs.stores.http.wire import About
from dibs.stores.port import Deliver, Done, GiveUp
from dibs.stores.web.links import LinkPool, WebLink, connect
from dibs.stores.web.reading import Response


class AsyncHttpLink(WebLink):
    """A connection to the service: one request at a time. It cannot be used again after an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, requests: Requests) -> None:
        super().__init__(loop)
        self.requests: Requests = requests


async def dial(settings: HttpSettings) -> AsyncHttpLink:
    """Connect, in the running loop. Raises `DibsError`."""
    link = AsyncHttpLink(asyncio.get_running_loop(), Requests(settings))
    try:
        await connect(link, settings)
    except OSError as error:
        raise unreachable(error, settings) from error
    return link


class AsyncEventStream:
    """A connection on which notifications arrive. It ends with an error if it is silent for too long."""

    def __init__(self, settings: HttpSettings, deliver: Deliver) -> None:
        """`deliver` also gets the error by which the stream ended, or says that it missed something."""
        self.error: DibsError | None = None
        """Why the stream ended."""
        self._settings = settings
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._stands: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Connect, request the stream, and wait for its first event. Raises `DibsError`."""
        self.link: AsyncHttpLink
        self.link = link = await dial(self._settings)
        self.reader: NotificationReader = NotificationReader(link.requests)
        link.reader.heed = self._heed
        link.launch(link.requests.stream(), self._over)
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                await self._stands
        except TimeoutError as error:
            self.end()
            raise BackendUnavailable(
                f"{self._settings.shown} did not begin its stream in time"
            ) from error
        except BaseException:
            self.end()
            raise
        self._look()

    def _heed(self, answer: Response) -> Callable[[bytes], None] | None:
        return None if self.reader.heed(answer) is None else self._hear_piece

    def _hear_piece(self, piece: bytes) -> None:
        self.reader.feed(piece)
        if self.reader.begun and not self._stands.done():
            self._stands.set_result(None)
        if arrived := self.reader.arrived():
            self._deliver(arrived)
        if self.reader.missed:
            self.reader.missed = False
            self._deliver(BackendUnavailable(MISSED_SOME))

    def _over(self, found: Response | Exception) -> None:
        """The stream has ended, or the answer was not a stream."""
        if self.error is not None:
            return
        try:
            self.reader.ended(found)
        except Exception as error:  # noqa: BLE001  # `deliver` takes errors of Dibs only
            self.error = broken(error, self._settings)
        self._stop()
        if self._stands.done():
            self._deliver(self.error)
        else:
            self._stands.set_exception(self.error)

    def _look(self) -> None:
        """Check that something arrived since the last check, at least a comment."""
        left = self.reader.due - time.monotonic()
        if left <= 0:
            self._over(TimeoutError())
            self.link.close()
        else:
            self._timer = self._loop.call_later(left, self._look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Close it."""
        self._stop()
        if self.error is None:
            self.error = BackendUnavailable("the stream was closed")
        self.link.close()


log: logging.Logger = logging.getLogger("dibs")


class AsyncHttpConnection:
    """See `AsyncConnection`: one TCP connection for each request under way, and one for notifications."""

    parallel = 2

    def __init__(self, settings: HttpSettings, learn: Callable[[About], None]) -> None:
        self._settings = settings
        self._learn = learn
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.inbox: str = ""
        self._links = LinkPool(partial(dial, self._settings))
        self._stream: AsyncEventStream | None = None
        self._loop_end: LoopEnd | None = None
        self._reconnect = ReconnectDelay()
        self._calls = HttpCalls(self, self._settings, self._learn)

    async def open(self) -> None:
        self._links.part(parting=False)
        if self._loop_end is None:
            self._loop_end = LoopEnd(self._part)
        await self._calls.about()

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
            return submit_in_task(self._calls.apply(commands), done)
        request = link.requests.batch(commands)
        if is_too_large(request, commands):
            return submit_in_task(self._calls.apply(commands), done)
        link.launch(request, partial(self._landed, link, commands, done))
        return link.close

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
            replies = self._calls.replies(link, found, commands)
        except DibsError as error:
            done(error)
        except Exception as error:  # noqa: BLE001  # else the callers would wait until their timeout
            done(BackendUnavailable(f"{self._settings.shown}: what came can't be read: {error!r}"))
        else:
            done(replies)

    async def take(self) -> AsyncHttpLink:
        """See `HttpPort`."""
        return await self._links.take()

    async def ask(self, link: AsyncHttpLink, request: bytes, timeout: float | None) -> Response:
        """See `HttpPort`."""
        try:
            return await self._links.ask(link, request, timeout)
        except Exception as error:
            raise broken(error, self._settings, silent=link.silent) from error

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await self._calls.scan(prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        return await self._calls.examine()

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        """See `AsyncConnection`. Without a stream there are no notifications, and everything else works."""
        if self._stream is not None and self._stream.error is None:
            return
        if self._stream is not None:
            self._end_stream()
            self._reconnect.failed()
        self._links.part(parting=False)
        await asyncio.sleep(self._reconnect.left)
        stream = AsyncEventStream(self._settings, deliver)
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
