"""Calls of the service, for asyncio and threads: what is sent, and what its answers mean."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dibs.errors import Forbidden
from dibs.model import Command, Finding, Page, Reply
from dibs.stores.http import wire
from dibs.stores.http.requests import Requests, findings, read_about, read_ttls
from dibs.stores.http.url import HttpSettings
from dibs.stores.web.reading import Response

LARGEST = 1 << 19
"""Bytes of a request above which its commands are sent in two. Services and proxies limit the body."""


class HttpLink(Protocol):
    """A connection for one request at a time."""

    @property
    def requests(self) -> Requests: ...
    def close(self) -> None: ...


class HttpPort[L: HttpLink](Protocol):
    """Carries requests. Over connections of threads its coroutines never suspend."""

    async def take(self) -> L:
        """Return a connection, to be used before the caller awaits anything else. Raises `DibsError`."""

    async def ask(self, link: L, request: bytes, timeout: float | None) -> Response:
        """Send a request and return its answer. Raises `DibsError`."""


class HttpCalls[L: HttpLink]:
    """The calls of one connection to a store. All raise `DibsError`."""

    def __init__(
        self, port: HttpPort[L], settings: HttpSettings, learn: Callable[[wire.About], None]
    ) -> None:
        self._port = port
        self._settings = settings
        self._learn = learn
        self._affinity = ServerAffinity()

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply a batch, in parts if it is too large for one request."""
        if not commands:
            return ()
        link = await self._port.take()
        request = link.requests.batch(commands)
        if is_too_large(request, commands):
            middle = len(commands) // 2
            return [*await self.apply(commands[:middle]), *await self.apply(commands[middle:])]
        return self.replies(link, await self._port.ask(link, request, None), commands)

    def replies(self, link: L, answer: Response, commands: Sequence[Command]) -> Sequence[Reply]:
        """Read the replies to a batch."""
        if self._affinity.is_elsewhere(commands, answer):
            link.close()
        return _read(link, answer, lambda requests, it: requests.replies(it, len(commands)))

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """See `AsyncConnection`."""
        return await self._get(lambda requests: requests.scan(prefix, cursor, limit), Requests.page)

    async def examine(self) -> Sequence[Finding]:
        """See `findings`."""
        about = await self.about()
        ttls = await self._get(Requests.limits, lambda requests, it: requests.read(it, read_ttls))
        return findings(about, ttls, self._settings)

    async def about(self) -> wire.About:
        """Ask what the service is. This also checks the API key."""
        about = await self._get(Requests.about, lambda requests, it: requests.read(it, read_about))
        self._learn(about)
        return about

    async def _get[T](
        self, write: Callable[[Requests], bytes], read: Callable[[Requests, Response], T]
    ) -> T:
        link = await self._port.take()
        answer = await self._port.ask(link, write(link.requests), self._settings.timeout)
        return _read(link, answer, read)


def is_too_large(request: bytes, commands: Sequence[Command]) -> bool:
    """Whether the commands of a request should be sent in two."""
    return len(request) > LARGEST and len(commands) > 1


def _read[T](link: HttpLink, answer: Response, read: Callable[[Requests, Response], T]) -> T:
    try:
        return read(link.requests, answer)
    except Forbidden:
        link.close()  # the next one looks for the key again
        raise


SOON = 1.0
SELDOM = 60.0
"""Seconds between two changes of the connection: at first, and after many."""


class ServerAffinity:
    """Keeps commands at the server that has our stream, where several stand behind one address.

    A server sends notifications about the commands that it received, over its own streams only. A waiter
    whose commands go to another server is granted when it polls, after a second instead of at once. So a
    connection to another server is closed after use, and the next one may lead to the right server. If that
    does not help, it is tried rarely.
    """

    def __init__(self) -> None:
        self._pause = SOON
        self._not_before = 0.0

    def is_elsewhere(self, commands: Sequence[Command], answer: Response) -> bool:
        """Whether to close the connection: another server has answered commands that name our stream."""
        inboxes = (getattr(command, "inbox", "") for command in commands)
        wanted = next(filter(None, inboxes), "").partition(".")[0]
        if not wanted or answer.headers.get(wire.SERVER_HEADER, wanted) == wanted:
            self._pause = SOON if wanted else self._pause
            return False
        now = time.monotonic()
        if now < self._not_before:
            return False
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, SELDOM)
        return True
