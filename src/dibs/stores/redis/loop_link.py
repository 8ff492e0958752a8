"""A connection in an event loop: a protocol of our own, since a whole client costs several times more."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from weakref import WeakSet

from dibs.stores.aio import BufferedLink, resolve
from dibs.stores.redis.link import MORE, PushNotification, keep_alive, new_reader
from dibs.stores.redis.settings import Endpoint, Settings

type Land = Callable[[list[Any] | Exception], None]
"""Who is told of the answers, or of what went wrong."""


class LoopLink(BufferedLink):
    """See `Link`. Once it has a `take`, all that comes is handed to that, in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> None:
        super().__init__(loop)
        self.endpoint = endpoint
        self.take: Callable[[Any], None] | None = None
        self.lost: Callable[[Exception], None] | None = None
        """Called once when it breaks, but not when it is closed by us."""
        self._asked: deque[tuple[Land, int]] = deque()
        """Who waits, and for how many answers."""
        self._answers: list[Any] = []
        """Those to the first of them, so far."""
        self._reader = new_reader()

    def ask(self, data: bytes, count: int = 1) -> asyncio.Future[list[Any]]:
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.launch(data, count, partial(resolve, future))
        return future

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
        """Hang up, unless somebody waits for an answer."""
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
                if self.take is not None:
                    self.take(reply)
                elif type(reply) is not PushNotification and asked:
                    self._answers.append(reply)
                    if len(self._answers) == asked[0][1]:
                        self._land_first()
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

    async def __call__(
        self, settings: Settings, endpoint: Endpoint, greeting: bytes, count: int
    ) -> tuple[LoopLink, list[Any]]:
        link = LoopLink(asyncio.get_running_loop(), endpoint)
        try:
            async with asyncio.timeout(settings.connect_timeout):
                await _connect(link, settings)
                answers = await link.ask(greeting, count) if count else []
        except BaseException:
            link.close()
            raise
        link.parting = self._parting
        self._links.add(link)
        return link, answers

    def part(self, *, parting: bool = True) -> None:
        """From now on hang up wherever nobody waits for an answer; or not any more.

        A loop that ends leaves no time for more, and a socket left open in it would be complained of.
        """
        self._parting = parting
        for link in list(self._links):
            link.parting = parting
            if parting:
                link.close_if_idle()


async def _connect(link: LoopLink, settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    endpoint, tls = link.endpoint, settings.tls
    if endpoint.path:
        await loop.create_unix_connection(lambda: link, endpoint.path)
    elif tls is None:
        await loop.create_connection(lambda: link, endpoint.host, endpoint.port)
    else:
        await loop.create_connection(
            lambda: link,
            endpoint.host,
            endpoint.port,
            ssl=tls(),
            server_hostname=endpoint.host,
        )
