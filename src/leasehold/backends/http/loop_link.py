"""A connection in an event loop: a protocol of our own, since a whole HTTP client costs many times more.

It reads into a buffer that stays: for each read of an ordinary protocol asyncio has the system map 256 KiB
of fresh memory, unless the heap happens to have them, and that can cost more than all else here.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import cast

from leasehold.backends.http.dialogue import Dialogue
from leasehold.backends.http.keep_alive import keep_alive
from leasehold.backends.http.reading import Answer, Reader
from leasehold.backends.http.settings import IDLE, Settings
from leasehold.backends.http.trouble import unreachable

type Land = Callable[[Answer | Exception], None]
"""Who is told of the answer, or of what went wrong."""

BUFFER = 65536
"""So many bytes are read at a time."""


class LoopLink(asyncio.BufferedProtocol):
    """One request at a time. After any failure it is of no use any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dialogue: Dialogue) -> None:
        self.dialogue = dialogue
        self.usable = True
        self.parting = False
        """It is not used much longer: to be closed as soon as nobody waits."""
        self.silent = True
        """Nothing was ever heard over it."""
        self.reader = Reader()
        self._loop = loop
        self._land: Land | None = None
        self._used = loop.time()
        self._buffer = memoryview(bytearray(BUFFER))  # TLS cuts it, and would cut a copy otherwise
        self._transport: asyncio.Transport | None = None

    @property
    def idle(self) -> bool:
        """It can be used, and nobody does."""
        if self.usable and self._land is None and self._loop.time() - self._used > IDLE:
            self.close()
        return self.usable and self._land is None

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request at once; to be awaited: its answer. Raises `OSError` or `NotHttp`."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.launch(request, partial(_resolve, future))
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

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

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
        self.usable = False
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()
        land, self._land = self._land, None
        if land is not None:
            land(error)

    def close_in_child(self) -> None:
        """The loop's selector is the parent's too: put nothing in the socket's place, and no more."""
        transport, self._transport = self._transport, None
        self.usable = False
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, sock.fileno(), inheritable=False)
            os.close(nothing)


def _resolve(future: asyncio.Future[Answer], found: Answer | Exception) -> None:
    if future.done():
        return  # whoever asked has left
    if isinstance(found, Exception):
        future.set_exception(found)
        future.exception()  # so that nobody complains where it is not awaited
    else:
        future.set_result(found)


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
