"""A connection in an event loop: an asyncio protocol of our own, since HTTP clients cost many times more."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Notification
from dibs.stores.aio import BufferedLink, resolve
from dibs.stores.http.errors import broken, unreachable
from dibs.stores.http.reading import Response, ResponseReader
from dibs.stores.http.requests import Requests, keep_alive
from dibs.stores.http.stream import StreamReader
from dibs.stores.http.url import IDLE, HttpSettings

type Land = Callable[[Response | Exception], None]
"""Called with the answer, or with an error."""


class AsyncHttpLink(BufferedLink):
    """One TCP connection: one request at a time. It cannot be used again after an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, requests: Requests) -> None:
        super().__init__(loop)
        self.requests = requests
        self.silent = True
        """Nothing has ever arrived on it."""
        self.reader = ResponseReader()
        self._land: Land | None = None
        self._used = loop.time()

    @property
    def idle(self) -> bool:
        """Whether it is open, and no request is under way."""
        if self.usable and self._land is None and self._loop.time() - self._used > IDLE:
            self.close()
        return self.usable and self._land is None

    def ask(self, request: bytes) -> asyncio.Future[Response]:
        """Send a request at once. The future of its answer raises `OSError` or `NotHttp`."""
        future: asyncio.Future[Response] = self._loop.create_future()
        self.launch(request, partial(resolve, future))
        return future

    def launch(self, request: bytes, land: Land) -> None:
        """Send a request at once, and call `land` with its answer."""
        if self.idle and self._transport is not None:
            self._land = land
            self._transport.write(request)
        else:
            land(ConnectionResetError("the connection is closed"))

    # -- what the loop calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            keep_alive(sock)
        if not self.usable:
            self._transport.abort()

    def buffer_updated(self, nbytes: int) -> None:
        self.silent = False
        try:
            for answer in self.reader.feed(self._buffer[:nbytes]):
                self._landed(answer)
        except Exception as error:  # noqa: BLE001  # whatever it was, nothing after it can be trusted
            self._break(error)

    def _landed(self, answer: Response) -> None:
        land, self._land = self._land, None
        self._used = self._loop.time()
        if land is None or self.parting or not answer.lasts:
            self._hang_up(ConnectionResetError("the service closed the connection"))
        if land is not None:
            land(answer)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error or ConnectionResetError("the service closed the connection"))

    # -- ends ---------------------------------------------------------------------------------------

    def _break(self, error: Exception) -> None:
        if self.usable:
            self._hang_up(error)

    def close_if_idle(self) -> None:
        """Close it, unless a request is under way."""
        if self._land is None:
            self.close()

    def close(self) -> None:
        """Close it. A request under way fails with an `OSError`."""
        if self.usable:
            self._hang_up(ConnectionAbortedError("the connection was closed meanwhile"))

    def _hang_up(self, error: Exception) -> None:
        self._abort()
        land, self._land = self._land, None
        if land is not None:
            land(error)


async def dial(settings: HttpSettings) -> AsyncHttpLink:
    """Connect, in the running loop. Raises `DibsError`."""
    loop = asyncio.get_running_loop()
    link = AsyncHttpLink(loop, Requests(settings))
    tls = settings.tls
    try:
        async with asyncio.timeout(settings.connect_timeout):
            await loop.create_connection(
                lambda: link,
                settings.host,
                settings.port,
                ssl=None if tls is None else tls(),
                server_hostname=None if tls is None else settings.host,
            )
    except BaseException as error:
        link.close()
        if isinstance(error, OSError):
            raise unreachable(error, settings) from error
        raise
    return link


class AsyncHttpStream:
    """A connection on which notifications arrive, and whose silence is noticed."""

    def __init__(self, settings: HttpSettings, hear: Callable[[list[Notification]], None]) -> None:
        self.error: DibsError | None = None
        """Why the stream ended."""
        self._settings = settings
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._stands: asyncio.Future[None] = self._loop.create_future()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Connect, ask for the stream, and wait until it works. Raises `DibsError`."""
        self.link = link = await dial(self._settings)
        self.reader = StreamReader(link.requests)
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
        self._heard_at = self._loop.time()
        self.reader(piece)
        if self.reader.hello is not None and not self._stands.done():
            self._stands.set_result(None)
        heard = self.reader.take()
        if heard or self.reader.missed:
            self._hear(heard)

    def _over(self, found: Response | Exception) -> None:
        """The stream has ended, or the answer was none."""
        if self.error is not None:
            return
        try:
            self.reader.ended(found)
        except Exception as error:  # noqa: BLE001  # whoever listens is told in our own words
            self.error = broken(error, self._settings)
        self._stop()
        if self._stands.done():
            self._hear([])
        else:
            self._stands.set_exception(self.error)

    def _look(self) -> None:
        """Check that something arrived since the last check, at least a comment."""
        due = self._heard_at + self.reader.longest
        if self._loop.time() >= due:
            self._over(TimeoutError())
            self.link.close()
        else:
            self._timer = self._loop.call_at(due, self._look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Close it."""
        self._stop()
        if self.error is None:
            self.error = BackendUnavailable("the stream was closed")
        self.link.close()
