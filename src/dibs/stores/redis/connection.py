"""One connection to one server, for either side: how it is made, and the one that blocks.

The event loop's is in `aio.py`, since importing asyncio takes time.
"""

import select
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import hiredis

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.stores.redis.errors import broken, explain, unreachable
from dibs.stores.redis.url import Endpoint, Login, Settings

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
"""The bytes of one command."""

ReplyError = hiredis.ReplyError
"""What an error of the server's is read as: a value, not raised."""

HiredisError = hiredis.HiredisError
"""What comes is not the protocol of Redis."""

MORE = object()
"""What a reader returns while a reply is incomplete."""

BUFFER = 65536
"""Bytes that are read at a time, at most."""

LEAST_WAIT = 0.001
"""Seconds that a wait lasts at least: with none at all a socket does not wait, but fails in another way."""

STALE = 1.0
"""Seconds of silence after which a connection is looked at before it is used."""


class Link(Protocol):
    """Requests leave in order, and their answers come in that order.

    After any failure a link is closed, so that the answer to an old request is never taken for that to a
    new one.
    """

    endpoint: Endpoint
    has_functions: bool
    """The ledger is called as a Function, until the server refuses that; see `ledger.py`."""

    @property
    def usable(self) -> bool:
        """Nothing is known to be wrong with it."""

    def ask(self, data: bytes, count: int, limit: float) -> Awaitable[list[Any]]:
        """Send commands at once; await their `count` answers, until `limit` seconds from now.

        That raises `OSError`.
        """

    def close(self) -> None:
        """Hang up. Callers that wait for an answer get an `OSError`."""

    def close_in_child(self) -> None:
        """Drop what a fork has copied, without a word to the server."""


type Dial = Callable[[Settings, Endpoint, float], Awaitable[Link]]
"""Connects within so many seconds. Raises `OSError`, or what the settings of TLS raise."""


def new_reader() -> Any:
    """Make a parser of replies: `feed` it, then call `gets` until that returns `MORE`."""
    return hiredis.Reader(notEnoughData=MORE)


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


async def connect(settings: Settings, dial: Dial, endpoint: Endpoint, timeout: float = inf) -> Link:
    """Make a link that is logged in, in the right database. Raises the errors of `stores.port`.

    It takes `timeout` seconds at most, and the connect timeout of the settings.
    """
    words = [*_login(settings.login), (b"CLIENT", b"SETNAME", b"dibs")]
    if settings.db:
        words.append((b"SELECT", settings.db))
    timeout = min(timeout, settings.connect_timeout)
    return (await _greet(settings, dial, endpoint, words, timeout))[0]


def _login(login: Login) -> list[tuple[Any, ...]]:
    user, password = login
    if user:
        return [(b"AUTH", user, password)]
    return [(b"AUTH", password)] if password else []


async def _greet(
    settings: Settings,
    dial: Dial,
    endpoint: Endpoint,
    words: Sequence[tuple[Any, ...]],
    timeout: float,
) -> tuple[Link, list[Any]]:
    """Connect, and send the first commands; return their answers, too."""
    until, link = monotonic() + timeout, None
    try:
        link = await dial(settings, endpoint, timeout)
        data = b"".join(map(pack, words))
        answers = await link.ask(data, len(words), until - monotonic())
    except BaseException as error:
        if link is not None:
            link.close()
        if isinstance(error, OSError | ValueError | HiredisError):
            raise unreachable(error, endpoint, encrypted=settings.tls is not None) from error
        raise
    for word, answer in zip(words, answers, strict=True):
        if isinstance(answer, ReplyError) and word[0] != b"CLIENT":  # an ACL may refuse our name
            link.close()
            raise explain(answer, endpoint)
    return link, answers


# ---- Sentinel -------------------------------------------------------------------------------------


async def connect_to_master(settings: Settings, dial: Dial) -> Link:
    """Ask the Sentinels anew. Raises `BackendUnavailable` if none of them leads to a master."""
    tried: list[DibsError] = []
    for each in settings.endpoints:
        try:
            return await _connect_by(settings, dial, each)
        except (BackendUnavailable, Forbidden) as error:
            tried.append(error)
    if all(isinstance(error, Forbidden) for error in tried):
        raise tried[0]
    told = "; ".join(str(error) for error in tried)
    raise BackendUnavailable(f"no Sentinel leads to the master {settings.service!r}: {told}")


async def _connect_by(settings: Settings, dial: Dial, sentinel: Endpoint) -> Link:
    question = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", settings.service)
    words = [*_login(settings.sentinel_login), question]
    link, answers = await _greet(settings, dial, sentinel, words, settings.connect_timeout)
    link.close()
    if not answers[-1]:
        raise BackendUnavailable(f"the Sentinel at {sentinel} knows no {settings.service!r}")
    host, port = answers[-1]
    master = Endpoint(host.decode(), int(port))
    link = await connect(settings, dial, master)
    try:
        (role,) = await link.ask(pack((b"ROLE",)), 1, settings.connect_timeout)
    except BaseException as error:
        link.close()
        if isinstance(error, OSError):
            raise broken(error, master) from error
        raise
    if isinstance(role, list) and role[0] != b"master":  # an ACL may refuse to tell: then believe
        link.close()
        raise BackendUnavailable(
            f"{master} is no master any more, and the Sentinel at {sentinel} does not know it yet"
        )
    return link


# ---- the connection that blocks -------------------------------------------------------------------


class _Answers:
    """The answers to what was just sent; they are read when they are awaited."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], list[Any]]) -> None:
        self._read = read

    def __await__(self) -> Generator[Any, None, list[Any]]:
        yield from ()
        return self._read()


class SocketLink:
    """See `Link`. Each call sends, then waits for its answers, and nothing suspends."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, dial: "SocketDial") -> None:
        self.endpoint: Endpoint = endpoint
        self.has_functions: bool = True
        self.socket: socket.socket = sock
        self._dial = dial
        self._open = True
        self._timeout = sock.gettimeout() or LEAST_WAIT
        self._reader = new_reader()
        self._buffer = bytearray(BUFFER)
        self._used = monotonic()

    @property
    def usable(self) -> bool:
        """A server that has hung up meanwhile is found out before anything is sent to it."""
        if self._open and monotonic() - self._used > STALE:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            if poll.poll(0):
                self.close()
            self._used = monotonic()
        return self._open

    def ask(self, data: bytes, count: int, limit: float) -> _Answers:
        until = min(monotonic() + limit, self._dial.until)
        try:
            self._wait_until(until)
            self.socket.sendall(data)
        except OSError as error:
            return _Answers(partial(_fail, error))
        return _Answers(partial(self._read_answers, count, until))

    def _read_answers(self, count: int, until: float) -> list[Any]:
        answers: list[Any] = []
        while len(answers) < count:
            self._wait_until(until)
            answers += self.read()
            self._used = monotonic()
        return answers

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

    def _wait_until(self, until: float) -> None:
        """Let the next wait end by then. What has come already can be read even later."""
        seconds = max(until - monotonic(), LEAST_WAIT)
        if abs(seconds - self._timeout) > 0.1 * self._timeout:  # setting it costs a system call
            self.socket.settimeout(seconds)
            self._timeout = seconds

    def close(self) -> None:
        self._open = False
        self.socket.close()

    close_in_child = close


def _fail(error: OSError) -> list[Any]:
    raise error


class SocketDial:
    """Makes links for a thread; see `Dial`. What is done with them ends by `until`."""

    def __init__(self) -> None:
        self.until = inf

    async def __call__(self, settings: Settings, endpoint: Endpoint, timeout: float) -> SocketLink:
        timeout = max(min(timeout, self.until - monotonic()), LEAST_WAIT)
        return SocketLink(_connect(settings, endpoint, timeout), endpoint, self)


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
