"""The blocking connections to a service: for requests, and for events. All happens in the caller's thread."""

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.http.errors import broken, unreachable
from dibs.stores.http.requests import NOTIFICATIONS, Requests, findings
from dibs.stores.http.stream import (
    MISSED_SOME,
    EventReader,
    NotificationReader,
    ReconnectDelay,
    ServerAffinity,
    nowhere,
)
from dibs.stores.http.url import LARGEST, HttpSettings
from dibs.stores.http.wire import About
from dibs.stores.waker import Waker
from dibs.stores.web.endpoint import IDLE, keep_alive
from dibs.stores.web.reading import Response, ResponseReader

_NOTHING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

BUFFER = 65536
"""Bytes that are read at a time, at most."""


class BlockingHttpLink:
    """One TCP connection: one request at a time. It cannot be used again after an error."""

    def __init__(self, sock: socket.socket, requests: Requests, settings: HttpSettings) -> None:
        self.socket = sock
        self.requests = requests
        self.reader = ResponseReader()
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
    """A connection on which events arrive, and whose silence is noticed.

    The constructor returns when the stream works. It cannot be used again after an error.
    """

    def __init__(
        self,
        settings: HttpSettings,
        reader: Callable[[Requests], R],
        path: str = NOTIFICATIONS,
        last_id: str = "",
    ) -> None:
        self._settings = settings
        self._link = link = dial(settings, settings.connect_timeout)
        self.socket: socket.socket = link.socket
        self.reader = reader(link.requests)
        link.reader.heed = self.reader.heed
        try:
            self._begin(link.requests.stream(path, last_id))
        except BaseException as error:
            link.close()
            if isinstance(error, Exception):
                raise broken(error, settings) from error
            raise

    def _begin(self, request: bytes) -> None:
        until = time.monotonic() + self._settings.connect_timeout
        self._link.send(request, self._settings.connect_timeout)
        while not self.reader.begun:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            self._read()
        self.socket.settimeout(0)

    def _read(self) -> None:
        for answer in self._link.read():
            self.reader.ended(answer)
        self._heard_at = time.monotonic()

    def receive(self) -> None:
        """Read what has arrived, without waiting. Raises `DibsError` if the stream ended."""
        try:
            self._read_all()
            if time.monotonic() >= self._heard_at + self.reader.longest:
                raise TimeoutError
        except Exception as error:
            raise broken(error, self._settings) from error

    def _read_all(self) -> None:
        try:
            while True:  # TLS may have read more than the socket shows
                self._read()
        except _NOTHING:
            pass

    def due_in(self) -> float:
        """Seconds to wait for the next bytes before the stream counts as dead."""
        return max(self._heard_at + self.reader.longest - time.monotonic(), 0.0) + 0.01

    def close(self) -> None:
        """Close it."""
        self._link.close()


log = logging.getLogger("dibs")


class BlockingHttpConnection:
    """See `BlockingConnection`. Once subscribed it has a second connection, on which notifications arrive."""

    def __init__(self, settings: HttpSettings, learn: Callable[[About], None]) -> None:
        self.inbox = ""
        self._settings = settings
        self._learn = learn
        self._affinity = ServerAffinity()
        self._reconnect = ReconnectDelay()
        self._link: BlockingHttpLink | None = None
        self._stream: BlockingEventStream[NotificationReader] | None = None
        self._waker: Waker | None = None
        on_fork(self)

    def open(self, timeout: float) -> None:
        self._about(min(timeout, self._settings.timeout))

    def close(self) -> None:
        self.inbox = ""
        self._end_stream()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    # -- requests -----------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        if not commands:
            return ()
        until = time.monotonic() + min(timeout, self._settings.timeout)
        link = self._connected(until - time.monotonic())
        request = link.requests.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            middle = len(commands) // 2
            first = self.apply(commands[:middle], timeout)
            return [*first, *self.apply(commands[middle:], timeout)]
        answer = link.ask(request, until - time.monotonic())
        if self._affinity.is_elsewhere(commands, answer):
            link.close()
        try:
            return link.requests.replies(answer, len(commands))
        except Forbidden:
            link.close()  # the next one looks for the key again
            raise

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        link = self._connected(self._settings.timeout)
        request = link.requests.scan(prefix, cursor, limit)
        return link.requests.page(link.ask(request, self._settings.timeout))

    def examine(self) -> Sequence[Finding]:
        """See `findings`."""
        about = self._about(self._settings.timeout)
        link = self._connected(self._settings.timeout)
        answer = link.ask(link.requests.limits(), self._settings.timeout)
        return findings(about, link.requests.ttls(answer), self._settings)

    def _about(self, timeout: float) -> About:
        """Ask what the service is. This also checks the API key."""
        link = self._connected(timeout)
        answer = link.ask(link.requests.about(), timeout)
        try:
            about = link.requests.who(answer)
        except BaseException:
            link.close()
            raise
        self._learn(about)
        return about

    def _connected(self, timeout: float) -> BlockingHttpLink:
        link = self._link
        if link is None or not link.usable:
            link = self._link = dial(self._settings, timeout)
        return link

    # -- notifications ------------------------------------------------------------------------------------

    def subscribe(self, timeout: float) -> None:
        if self._waker is None:
            self._listen()
            self._waker = Waker()

    def _listen(self) -> None:
        """Open a stream, and with it an inbox. Without one only notifications are missing."""
        try:
            self._stream = BlockingEventStream(self._settings, NotificationReader)
        except BackendUnavailable as error:
            log.debug("no stream of %s: %s", self._settings.shown, error)
            self._reconnect.failed()
            self.inbox = self.inbox or nowhere()
        else:
            self._reconnect.succeeded()
            self.inbox = self._stream.reader.inbox

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        if self._waker is None:
            return ()
        stream = self._stream
        if stream is None:
            return self._try_again(self._waker, timeout)
        try:
            found = self._wait(stream, self._waker, timeout)
        except DibsError:
            self._end_stream()
            self._reconnect.failed()
            self._waker.wait(self._reconnect.left)
            raise
        if stream.reader.missed:
            stream.reader.missed = False
            raise BackendUnavailable(MISSED_SOME)
        return found

    def _try_again(self, waker: Waker, timeout: float | None) -> Sequence[Notification]:
        """Wait until a stream may be opened again, and open it."""
        left = self._reconnect.left
        woken = waker.wait(left if timeout is None else min(left, timeout))
        if not woken and not self._reconnect.left:
            self._listen()
            if self._stream is not None:
                raise BackendUnavailable(MISSED_SOME)
        return ()

    def _wait(
        self,
        stream: BlockingEventStream[NotificationReader],
        waker: Waker,
        timeout: float | None,
    ) -> Sequence[Notification]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            stream.receive()
            arrived = stream.reader.arrived()
            left = None if end is None else end - time.monotonic()
            if arrived or stream.reader.missed or (left is not None and left <= 0):
                return arrived
            due = stream.due_in()
            left = due if left is None else min(left, due)
            if waker.wait(left, stream.socket):
                return ()

    def wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()

    def after_fork(self) -> None:
        """Forget the parent's connections, in the child."""
        link, stream, waker = self._link, self._stream, self._waker
        self._link = self._stream = self._waker = None
        self.inbox = ""
        for each in (link, stream, waker):
            if each is not None:
                each.close()
