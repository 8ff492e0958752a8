"""The blocking connections to a service: for requests, and for events. All happens in the caller's thread."""

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.http.calls import HttpCalls
from dibs.stores.http.errors import broken, unreachable
from dibs.stores.http.requests import NOTIFICATIONS, Requests
from dibs.stores.http.stream import (
    MISSED_SOME,
    EventReader,
    NotificationReader,
    ReconnectDelay,
    nowhere,
)
from dibs.stores.http.url import HttpSettings
from dibs.stores.http.wire import About
from dibs.stores.port import step
from dibs.stores.waker import Waker
from dibs.stores.web.endpoint import IDLE, keep_alive
from dibs.stores.web.reading import Response, ResponseReader

_NOTHING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

BUFFER = 65536
"""Bytes that are read at a time, at most."""


class BlockingHttpLink:
    """A TCP connection for one request at a time. It cannot be used again after an error."""

    def __init__(self, sock: socket.socket, requests: Requests, settings: HttpSettings) -> None:
        self.socket: socket.socket = sock
        self.requests: Requests = requests
        self.reader: ResponseReader = ResponseReader()
        self._silent = True
        self._settings = settings
        self._open = True
        self._buffer = memoryview(bytearray(BUFFER))
        self._used = time.monotonic()
        self._timeout = 0.0

    @property
    def usable(self) -> bool:
        """Whether it is open. A connection that the service has closed is noticed before anything is sent."""
        if self._open:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            if poll.poll(0) or time.monotonic() - self._used > IDLE:
                self.close()
        return self._open

    def ask(self, request: bytes, timeout: float) -> Response:
        """Send a request and wait for its answer. Raises `DibsError`."""
        until = time.monotonic() + timeout
        try:
            self.send(request, timeout)
            while True:
                answers = self.read()
                self._used = time.monotonic()
                if answers:
                    return self._last_of(answers)
                self._wait_at_most(until - self._used)
        except Exception as error:
            self.close()
            raise broken(error, self._settings, silent=self._silent) from error
        except BaseException:
            self.close()  # interrupted: the next request must not get this answer
            raise

    def send(self, request: bytes, timeout: float) -> None:
        """Send a request. Later reads wait for at most `timeout` seconds each. Raises `OSError`."""
        self._wait_at_most(timeout)
        self.socket.sendall(request)

    def read(self) -> list[Response]:
        """Wait for bytes, and return the answers that are complete. Raises `OSError` or `NotHttp`."""
        count = self.socket.recv_into(self._buffer)
        if not count:
            raise ConnectionResetError("the service closed the connection")
        self._silent = False
        return self.reader.feed(self._buffer[:count])

    def _last_of(self, answers: list[Response]) -> Response:
        if len(answers) > 1 or not answers[0].lasts:
            self.close()
        return answers[0]

    def _wait_at_most(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError
        if abs(seconds - self._timeout) > 0.1 * self._timeout:  # setting it costs a system call
            self.socket.settimeout(seconds)
            self._timeout = seconds

    def close(self) -> None:
        """Close it."""
        self._open = False
        self.socket.close()


def dial(settings: HttpSettings, timeout: float) -> BlockingHttpLink:
    """Connect. Raises `DibsError`."""
    requests = Requests(settings)
    try:
        sock = _connect(settings, min(timeout, settings.connect_timeout))
    except OSError as error:
        raise unreachable(error, settings) from error
    return BlockingHttpLink(sock, requests, settings)


def _connect(settings: HttpSettings, timeout: float) -> socket.socket:
    sock = socket.create_connection((settings.host, settings.port), timeout)
    try:
        keep_alive(sock)
        if settings.tls is not None:
            sock = settings.tls().wrap_socket(sock, server_hostname=settings.host)
    except BaseException:
        sock.close()
        raise
    return sock


class BlockingEventStream[R: EventReader]:
    """A stream of events. It is opened again after it broke, or was silent for too long.

    Each connection has a reader of its own. The server is asked to go on after the last event.
    """

    def __init__(
        self,
        settings: HttpSettings,
        reader: Callable[[Requests], R],
        path: str = NOTIFICATIONS,
    ) -> None:
        self.reader: R | None = None
        """Reads the present connection, or the last one."""
        self._settings = settings
        self._new_reader = reader
        self._path = path
        self._last_id = ""
        self._link: BlockingHttpLink | None = None
        self._reconnect = ReconnectDelay()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._link is not None

    def receive(self) -> None:
        """Read what has arrived, without waiting; first open the stream, if the pause for that is over.

        Raises `DibsError` if it cannot be opened, or broke.
        """
        try:
            if self._link is None:
                if self._reconnect.left:
                    return
                self._link = self._open()
            self._read_all(self._link)
        except BaseException as error:
            self.close()
            self._reconnect.failed()
            if isinstance(error, Exception):
                raise broken(error, self._settings) from error
            raise

    def _open(self) -> BlockingHttpLink:
        timeout = self._settings.connect_timeout
        link = dial(self._settings, timeout)
        if self.reader is not None:
            self._last_id = self.reader.last_id or self._last_id
        self.reader = reader = self._new_reader(link.requests)
        link.reader.heed = reader.heed
        try:
            until = time.monotonic() + timeout
            link.send(link.requests.stream(self._path, self._last_id), timeout)
            while not reader.begun:
                link.socket.settimeout(max(until - time.monotonic(), 0.001))
                self._read(link)
        except BaseException:
            link.close()
            raise
        link.socket.settimeout(0)
        self._reconnect.succeeded()
        return link

    def _read(self, link: BlockingHttpLink) -> None:
        assert self.reader is not None
        for answer in link.read():
            self.reader.ended(answer)

    def _read_all(self, link: BlockingHttpLink) -> None:
        try:
            while True:  # TLS may have read more than the socket shows
                self._read(link)
        except _NOTHING:
            pass
        if self._silent_in() <= 0:
            raise TimeoutError

    def _silent_in(self) -> float:
        """Seconds to wait for the next bytes before the stream counts as dead."""
        return -1.0 if self.reader is None else self.reader.due - time.monotonic()

    def wait(self, timeout: float | None, waker: Waker) -> bool:
        """Wait until there is something to receive, or the stream may be opened. True after a `wake`."""
        link = self._link
        due = self._reconnect.left if link is None else max(self._silent_in(), 0.0) + 0.01
        sockets = () if link is None else (link.socket,)
        return waker.wait(due if timeout is None else min(timeout, due), *sockets)

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


log: logging.Logger = logging.getLogger("dibs")


class BlockingHttpConnection:
    """See `BlockingConnection`. Once subscribed it has a second connection, on which notifications arrive."""

    def __init__(self, settings: HttpSettings, learn: Callable[[About], None]) -> None:
        self.inbox: str = ""
        self._settings = settings
        self._calls = HttpCalls(self, settings, learn)
        self._until = inf
        """When the call that is under way has to end, on the monotonic clock."""
        self._link: BlockingHttpLink | None = None
        self._stream = BlockingEventStream(settings, NotificationReader)
        self._waker: Waker | None = None
        on_fork(self)

    def open(self, timeout: float) -> None:
        self._run(self._calls.about(), min(timeout, self._settings.timeout))

    def close(self) -> None:
        self.inbox = ""
        self._stream.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    # -- requests -----------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        return self._run(self._calls.apply(commands), min(timeout, self._settings.timeout))

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._run(self._calls.scan(prefix, cursor, limit))

    def examine(self) -> Sequence[Finding]:
        return self._run(self._calls.examine())

    def _run[T](self, calling: Coroutine[Any, Any, T], timeout: float = inf) -> T:
        """Run it within `timeout` seconds. Each answer has its own limit besides."""
        self._until = time.monotonic() + timeout
        return step(calling)

    async def take(self) -> BlockingHttpLink:
        """See `HttpPort`."""
        link = self._link
        if link is None or not link.usable:
            link = self._link = dial(self._settings, self._until - time.monotonic())
        return link

    async def ask(self, link: BlockingHttpLink, request: bytes, timeout: float | None) -> Response:
        """See `HttpPort`."""
        left = self._until - time.monotonic()
        return link.ask(request, left if timeout is None else min(left, timeout))

    # -- notifications ------------------------------------------------------------------------------------

    def subscribe(self, timeout: float) -> None:
        if self._waker is None:
            self._listen()
            self._waker = Waker()

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        end = None if timeout is None else time.monotonic() + timeout
        while (waker := self._waker) is not None:
            self._listen()
            reader = self._stream.reader
            arrived = [] if reader is None else reader.arrived()
            left = None if end is None else end - time.monotonic()
            if arrived or (left is not None and left <= 0):
                return arrived
            if self._stream.wait(left, waker):
                break
        return ()

    def _listen(self) -> None:
        """Read the stream, and open it if necessary: with it comes the inbox.

        Raises `BackendUnavailable` if notifications may be missing. Without a stream only they are.
        """
        stream, waker = self._stream, self._waker
        was_open = stream.is_open
        try:
            stream.receive()
        except BackendUnavailable as error:
            if was_open and waker is not None:
                stream.wait(
                    None, waker
                )  # else all clients of a server that stopped would ask at once
                raise
            log.debug("no stream of %s: %s", self._settings.shown, error)
            self.inbox = self.inbox or nowhere()
        reader = stream.reader
        if reader is None or not stream.is_open:
            return
        if not was_open:
            self.inbox = reader.inbox
        is_again = not was_open and waker is not None
        if is_again or reader.missed:
            reader.missed = False
            raise BackendUnavailable(MISSED_SOME)

    def wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()

    def after_fork(self) -> None:
        """Forget the parent's connections, in the child."""
        self.close()
