"""HTTP/1.1 connections in an event loop: a protocol of our own, since HTTP clients cost many times more."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import cast

from dibs.stores.aio import BufferedLink, resolve
from dibs.stores.web.endpoint import IDLE, WebEndpoint, keep_alive
from dibs.stores.web.reading import Response, ResponseReader

type Land = Callable[[Response | Exception], None]
"""Called once, with the answer or an error."""

type Tunnel = Callable[[WebEndpoint], Awaitable[socket.socket]]
"""Makes a socket that reaches a server through a proxy. Raises `OSError`."""

MAX_IDLE = 4
"""Connections that are kept for the next requests, at most, unless a store wants more."""


class WebLink(BufferedLink):
    """A TCP connection for one request at a time. It cannot be used again after an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.silent: bool = True
        """Nothing has ever arrived on it."""
        self.reader: ResponseReader = ResponseReader()
        self._land: Land | None = None
        self._used = loop.time()
        self._until = inf
        """When the request under way has taken too long, on the loop's clock."""
        self._look_at = inf
        """When the timer goes off."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether it is open, and no request is under way."""
        if self._land is not None or not self.usable:
            return False
        if self._loop.time() - self._used > IDLE:
            self.close()
        return self.usable

    def ask(self, request: bytes, timeout: float = inf) -> asyncio.Future[Response]:
        """Send a request at once. The future of its answer raises `OSError` or `NotHttp`."""
        future: asyncio.Future[Response] = self._loop.create_future()
        self.launch(request, partial(resolve, future), timeout)
        return future

    def launch(self, request: bytes, land: Land, timeout: float = inf) -> None:
        """Send a request at once, and call `land` with its answer.

        After `timeout` seconds it fails with `TimeoutError`.
        """
        if self.idle and self._transport is not None:
            self._land = land
            self._until = self._loop.time() + timeout
            if self._until < self._look_at:
                self._set_timer()
            self._transport.write(request)
        else:
            land(ConnectionResetError("the connection is closed"))

    def _set_timer(self) -> None:
        """One timer serves many requests: most have their answers long before it goes off."""
        if self._timer is not None:
            self._timer.cancel()
        self._look_at = self._until
        self._timer = self._loop.call_at(self._until, self._look)

    def _look(self) -> None:
        self._timer, self._look_at = None, inf
        if self._land is not None and self._until <= self._loop.time():
            self._hang_up(TimeoutError())
        elif self._land is not None and self._until < inf:
            self._set_timer()

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
            self._hang_up(ConnectionResetError("the server closed the connection"))
        if land is not None:
            land(answer)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error or ConnectionResetError("the server closed the connection"))

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
        if self._timer is not None:
            self._timer.cancel()
        land, self._land = self._land, None
        if land is not None:
            land(error)


async def connect(
    link: WebLink, endpoint: WebEndpoint, tunnel: Tunnel | None = None, server_name: str = ""
) -> None:
    """Connect a link, in the running loop. Raises `OSError`, of which `TimeoutError` is one.

    A certificate of the server must be for `server_name`, or for the host if that is empty.
    """
    loop, tls = asyncio.get_running_loop(), endpoint.tls
    context = None if tls is None else tls()
    name = None if tls is None else server_name or endpoint.host
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(endpoint.connect_timeout):
            if tunnel is None:
                await loop.create_connection(
                    lambda: link, endpoint.host, endpoint.port, ssl=context, server_hostname=name
                )
            else:
                sock = await tunnel(endpoint)
                await loop.create_connection(
                    lambda: link, sock=sock, ssl=context, server_hostname=name
                )
    except BaseException:
        link.close()
        if sock is not None:
            sock.close()
        raise


class LinkPool[L: WebLink]:
    """The connections of one loop to a server, made by `dial` when they are needed."""

    def __init__(self, dial: Callable[[], Awaitable[L]], most_idle: int = MAX_IDLE) -> None:
        self._dial = dial
        self._links: list[L] = []
        self._most_idle = most_idle
        self._parting = False

    def idle(self) -> L | None:
        """Return a connection that is open and idle, if there is one."""
        for link in self._links:
            if link.idle:
                return link
        return None

    async def take(self) -> L:
        """Return an idle connection, to be used before the caller awaits anything. Raises like `dial`."""
        link = self.idle()
        if link is None:
            link = await self._dial()
            self._links = [each for each in self._links if each.usable]
            self._links.append(link)
            link.parting = self._parting or len(self._links) > self._most_idle
        return link

    async def ask(self, link: L, request: bytes, timeout: float | None = None) -> Response:
        """Send a request and return its answer. Raises `OSError` or `NotHttp`, and closes the link then."""
        try:
            return await link.ask(request, inf if timeout is None else timeout)
        except BaseException:
            link.close()  # also if cancelled: the next request must not get this answer
            raise

    def part(self, *, parting: bool = True) -> None:
        """Close connections as soon as they are idle, from now on; or no longer.

        A loop that ends leaves no time to close them later, and asyncio warns about sockets that stay open.
        """
        self._parting = parting
        for link in self._links:
            link.parting = parting
            if parting:
                link.close_if_idle()

    def leave(self) -> None:
        """Use none of the present connections for later requests."""
        links, self._links = self._links, []
        for link in links:
            link.parting = True
            link.close_if_idle()

    def close_in_child(self) -> None:
        """Close the sockets that a fork has copied, and send nothing."""
        links, self._links = self._links, []
        for link in links:
            link.close_in_child()
