"""One connection to one server, for either side: how it is made, and the one that blocks.

The event loop's is in `aio.py`, since importing asyncio takes time.
"""

import select
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import hiredis

from dibs.stores.redis.errors import explain, unreachable
from dibs.stores.redis.url import Endpoint, Login, Settings

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
"""The bytes of one command."""

ReplyError = hiredis.ReplyError
"""What an error of the server's is read as: a value, not raised."""

PushNotification = hiredis.PushNotification
HiredisError = hiredis.HiredisError
"""What comes is not the protocol of Redis."""

MORE = object()
"""What a reader returns while a reply is incomplete."""

BUFFER = 65536
"""Bytes that are read at a time, at most."""

STALE = 1.0
"""Seconds of silence after which a connection is looked at before it is used."""


class Link(Protocol):
    """Requests leave in order, and their answers come in that order.

    After any failure a link is of no use any more, so that the answer to an old request is never
    taken for that to a new one.
    """

    endpoint: Endpoint
    has_functions: bool
    """The ledger is called as a Function, until the server refuses that; see `ledger.py`."""

    @property
    def usable(self) -> bool:
        """Nothing is known to be wrong with it."""

    def ask(self, data: bytes, count: int = 1) -> Awaitable[list[Any]]:
        """Send commands at once; await their `count` answers. Raises `OSError`."""

    def close(self) -> None:
        """Hang up; whoever waits for an answer gets an `OSError`."""

    def close_in_child(self) -> None:
        """Let go of what a fork has copied, without a word to the server."""


class Dial(Protocol):
    """Makes links."""

    async def __call__(
        self, settings: Settings, endpoint: Endpoint, greeting: bytes, count: int
    ) -> tuple[Link, list[Any]]:
        """Connect, greet, and return the `count` answers to that; all within the connect timeout.

        Raises `OSError` or `TimeoutError`, or what the settings of TLS raise.
        """


class Reader(Protocol):
    """Reads replies from bytes."""

    def feed(self, data: bytearray | memoryview, offset: int, length: int) -> None:
        """Take in a part of a buffer, which may be overwritten then."""

    def gets(self) -> Any:
        """The next reply, or `MORE`."""


def new_reader() -> Reader:
    """One of hiredis's, whose types say that it reads `bytes` only."""
    return cast(Reader, hiredis.Reader(notEnoughData=MORE))


def keep_alive(sock: "socket.socket | TransportSocket") -> None:
    """Have the kernel find out within a minute that the other side is gone without a word."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# ---- the handshake --------------------------------------------------------------------------------


async def connect(settings: Settings, dial: Dial, endpoint: Endpoint) -> Link:
    """A link that is logged in, in the right database. Raises the errors of `stores.port`."""
    words = [*_login(settings.login, settings.protocol), (b"CLIENT", b"SETNAME", b"dibs")]
    if settings.db:
        words.append((b"SELECT", settings.db))
    return (await _greet(settings, dial, endpoint, words))[0]


async def ask_sentinel(
    settings: Settings, dial: Dial, endpoint: Endpoint, question: tuple[Any, ...]
) -> Any:
    """One answer of a Sentinel's."""
    words = [*_login(settings.sentinel_login, 2), question]
    link, answers = await _greet(settings, dial, endpoint, words)
    link.close()
    return answers[-1]


def _login(login: Login, protocol: int) -> list[tuple[Any, ...]]:
    user, password = login
    if protocol == 3:
        auth = (b"AUTH", user or "default", password) if password or user else ()
        return [(b"HELLO", b"3", *auth)]
    if user:
        return [(b"AUTH", user, password)]
    return [(b"AUTH", password)] if password else []


async def _greet(
    settings: Settings, dial: Dial, endpoint: Endpoint, words: Sequence[tuple[Any, ...]]
) -> tuple[Link, list[Any]]:
    try:
        link, answers = await dial(settings, endpoint, b"".join(map(pack, words)), len(words))
    except (OSError, ValueError, HiredisError) as error:
        raise unreachable(error, endpoint, encrypted=settings.tls is not None) from error
    for word, answer in zip(words, answers, strict=True):
        if isinstance(answer, ReplyError) and word[0] != b"CLIENT":  # an ACL may refuse our name
            link.close()
            raise explain(answer, endpoint)
    return link, answers


# ---- the connection that blocks -------------------------------------------------------------------


class TimeLimit:
    """Seconds that the answers to one call may take; whoever calls sets it before."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class _Answers:
    """The answers to what was just sent; they are read when they are awaited."""

    __slots__ = ("_count", "_link")

    def __init__(self, link: "SocketLink", count: int) -> None:
        self._link = link
        self._count = count

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._read().__await__()

    async def _read(self) -> list[Any]:
        return self._link.read_answers(self._count)


class SocketLink:
    """See `Link`. Each call sends, then waits for its answers, and nothing suspends."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, limit: TimeLimit) -> None:
        self.endpoint = endpoint
        self.has_functions = True
        self.socket = sock
        self.limit = limit
        self._open = True
        self._timeout = limit.seconds
        self._reader = new_reader()
        self._buffer = bytearray(BUFFER)
        self._used = time.monotonic()
        sock.settimeout(limit.seconds)

    @property
    def usable(self) -> bool:
        """A server that has hung up meanwhile is found out before anything is sent to it."""
        if self._open and time.monotonic() - self._used > STALE:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            if poll.poll(0):
                self.close()
            self._used = time.monotonic()
        return self._open

    def ask(self, data: bytes, count: int = 1) -> _Answers:
        self._wait_at_most(self.limit.seconds)
        self.socket.sendall(data)
        return _Answers(self, count)

    def read_answers(self, count: int) -> list[Any]:
        """Wait for so many answers."""
        until = time.monotonic() + self.limit.seconds
        answers: list[Any] = []
        while True:
            answers += [each for each in self.read() if type(each) is not PushNotification]
            self._used = time.monotonic()
            if len(answers) >= count:
                return answers
            self._wait_at_most(until - self._used)

    def read(self) -> list[Any]:
        """What has come, after waiting for something to come."""
        count = self.socket.recv_into(self._buffer)
        if not count:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(self._buffer, 0, count)
        found = []
        while (reply := self._reader.gets()) is not MORE:
            found.append(reply)
        return found

    def _wait_at_most(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError
        if abs(seconds - self._timeout) > 0.1 * self._timeout:  # setting it costs a system call
            self.socket.settimeout(seconds)
            self._timeout = seconds

    def close(self) -> None:
        self._open = False
        self.socket.close()

    close_in_child = close


class SocketDial:
    """Makes links for a thread; see `Dial`."""

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit

    async def __call__(
        self, settings: Settings, endpoint: Endpoint, greeting: bytes, count: int
    ) -> tuple[SocketLink, list[Any]]:
        at_first = TimeLimit(min(settings.connect_timeout, self._limit.seconds))
        sock = _connect(settings, endpoint, at_first.seconds)
        link = SocketLink(sock, endpoint, at_first)
        try:
            answers = await link.ask(greeting, count) if count else []
        except BaseException:
            link.close()
            raise
        link.limit = self._limit
        return link, answers


def _connect(settings: Settings, endpoint: Endpoint, timeout: float) -> socket.socket:
    if endpoint.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout)
    try:
        if endpoint.path:
            sock.settimeout(timeout)
            sock.connect(endpoint.path)
        keep_alive(sock)
        if settings.tls is not None:
            sock = settings.tls().wrap_socket(sock, server_hostname=endpoint.host)
    except BaseException:
        sock.close()
        raise
    return sock
