"""A connection for a thread: each call sends, then waits for its answers, and nothing suspends."""

import select
import socket
import time
from collections.abc import Generator
from typing import Any

from dibs.stores.redis.link import MORE, PushNotification, keep_alive, new_reader
from dibs.stores.redis.settings import Endpoint, Settings

BUFFER = 65536
"""So many bytes are read at a time."""

STALE = 1.0
"""After so many seconds in which nothing was said, a link is looked at before it is used."""


class Patience:
    """How long the answers to one call may take; whoever calls sets it before."""

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
    """See `Link`."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, patience: "Patience") -> None:
        self.endpoint = endpoint
        self.has_functions = True
        self.socket = sock
        self.patience = patience
        self._open = True
        self._timeout = patience.seconds
        self._reader = new_reader()
        self._buffer = bytearray(BUFFER)
        self._used = time.monotonic()
        sock.settimeout(patience.seconds)

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
        self._wait_at_most(self.patience.seconds)
        self.socket.sendall(data)
        return _Answers(self, count)

    def exchange(self, data: bytes) -> Any:
        """Send one command, and wait for its answer."""
        self._wait_at_most(self.patience.seconds)
        self.socket.sendall(data)
        return self.read_answers(1)[0]

    def read_answers(self, count: int) -> list[Any]:
        """Wait for so many answers."""
        until = time.monotonic() + self.patience.seconds
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

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    async def __call__(
        self, settings: Settings, endpoint: Endpoint, greeting: bytes, count: int
    ) -> tuple[SocketLink, list[Any]]:
        at_first = Patience(min(settings.connect_timeout, self._patience.seconds))
        sock = _connect(settings, endpoint, at_first.seconds)
        link = SocketLink(sock, endpoint, at_first)
        try:
            answers = await link.ask(greeting, count) if count else []
        except BaseException:
            link.close()
            raise
        link.patience = self._patience
        return link, answers


def _connect(settings: Settings, endpoint: Endpoint, patience: float) -> socket.socket:
    if endpoint.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(patience)
            sock.connect(endpoint.path)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection((endpoint.host, endpoint.port), patience)
    try:
        keep_alive(sock)
        tls = settings.tls
        if tls is not None:
            sock = tls().wrap_socket(sock, server_hostname=endpoint.host)
    except BaseException:
        sock.close()
        raise
    return sock
