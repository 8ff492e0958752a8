"""A connection in an event loop: a protocol of our own, since a whole HTTP client costs many times more."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from dibs.backends.buffered import BufferedLink, resolve
from dibs.backends.http.dialogue import Dialogue
from dibs.backends.http.keep_alive import keep_alive
from dibs.backends.http.reading import Answer, Reader
from dibs.backends.http.settings import IDLE, Settings
from dibs.backends.http.trouble import unreachable

type Land = Callable[[Answer | Exception], None]
"""Who is told of the answer, or of what went wrong."""


class LoopLink(BufferedLink):
    """One request at a time. After any failure it is of no use any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dialogue: Dialogue) -> None:
        super().__init__(loop)
        self.dialogue = dialogue
        self.silent = True
        """Nothing was ever heard over it."""
        self.reader = Reader()
        self._land: Land | None = None
        self._used = loop.time()

    @property
    def idle(self) -> bool:
        """It can be used, and nobody does."""
        if self.usable and self._land is None and self._loop.time() - self._used > IDLE:
            self.close()
        return self.usable and self._land is None

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request at once; to be awaited: its answer. Raises `OSError` or `NotHttp`."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.launch(request, partial(resolve, future))
        return future

    def launch(self, request: bytes, land: Land) -> None:
        """Send a request at once, and have `land` called with its answer as soon as that is there."""
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

    def _landed(self, answer: Answer) -> None:
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
        """Hang up, unless somebody waits for an answer."""
        if self._land is None:
            self.close()

    def close(self) -> None:
        """Hang up; whoever waits for an answer gets an `OSError`."""
        if self.usable:
            self._hang_up(ConnectionAbortedError("the connection was closed meanwhile"))

    def _hang_up(self, error: Exception) -> None:
        self._abort()
        land, self._land = self._land, None
        if land is not None:
            land(error)


async def dial(settings: Settings) -> LoopLink:
    """Make a link in the running loop. Raises what keeps us from it, in our own words."""
    loop = asyncio.get_running_loop()
    link = LoopLink(loop, Dialogue(settings))
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
