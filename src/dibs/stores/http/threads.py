"""Threads' way to the service: everything is done in the caller's own thread."""

import logging
import socket
import ssl
import time
from collections.abc import Sequence

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.http import examining
from dibs.stores.http.following import Following, Spread
from dibs.stores.http.settings import LARGEST, Promises, Settings
from dibs.stores.http.socket_link import SocketLink, dial
from dibs.stores.http.stream import MISSED_SOME, Ear, nowhere
from dibs.stores.http.trouble import broken
from dibs.stores.http.wire_service import About
from dibs.stores.waker import Waker

_NOTHING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class SocketStream:
    """A connection on which pushes arrive, and whose silence is noticed.

    Made when it stands. After any error it is of no use any more.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._link = link = dial(settings, settings.connect_timeout)
        self.socket: socket.socket = link.socket
        self.ear = ear = Ear(link.dialogue)
        link.reader.heed = ear.heed
        try:
            self._begin(time.monotonic() + settings.connect_timeout)
        except BaseException as error:
            link.close()
            if isinstance(error, Exception):
                raise broken(error, settings) from error
            raise

    def _begin(self, until: float) -> None:
        self._link.send(self._link.dialogue.stream(), self._settings.connect_timeout)
        while self.ear.hello is None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            self._read()
        self.socket.settimeout(0)

    def _read(self) -> None:
        for answer in self._link.read():
            self.ear.ended(answer)
        self._heard_at = time.monotonic()

    def receive(self) -> list[Notification]:
        """What has come, without waiting. Raises `BackendUnavailable` if nothing can come any more."""
        try:
            self._read_all()
            if time.monotonic() >= self._heard_at + self.ear.longest:
                raise TimeoutError
        except Exception as error:
            raise broken(error, self._settings) from error
        return self.ear.take()

    def _read_all(self) -> None:
        try:
            while True:  # TLS may have read more than the socket shows
                self._read()
        except _NOTHING:
            pass

    def due_in(self) -> float:
        """How long to wait for something to come before it is dead, in seconds."""
        return max(self._heard_at + self.ear.longest - time.monotonic(), 0.0) + 0.01

    def close(self) -> None:
        """Hang up."""
        self._link.close()


log = logging.getLogger("dibs")


class BlockingHttpConnection:
    """See `BlockingConnection`. Once subscribed it has a second connection, on which notifications arrive."""

    def __init__(self, settings: Settings, promises: Promises) -> None:
        self.inbox = ""
        self._settings = settings
        self._promises = promises
        self._following = Following()
        self._spread = Spread()
        self._link: SocketLink | None = None
        self._stream: SocketStream | None = None
        self._bell: Waker | None = None
        on_fork(self)

    def open(self, timeout: float) -> None:
        self._about(min(timeout, self._settings.timeout))

    def close(self) -> None:
        self.inbox = ""
        self._end_stream()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    # -- requests -----------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        if not commands:
            return ()
        until = time.monotonic() + min(timeout, self._settings.timeout)
        link = self._connected(until - time.monotonic())
        request = link.dialogue.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            middle = len(commands) // 2
            first = self.apply(commands[:middle], timeout)
            return [*first, *self.apply(commands[middle:], timeout)]
        answer = link.ask(request, until - time.monotonic())
        if self._following.astray(commands, answer):
            link.close()
        try:
            return link.dialogue.replies(answer, len(commands))
        except Forbidden:
            link.close()  # the next one looks for the key again
            raise

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        link = self._connected(self._settings.timeout)
        request = link.dialogue.scan(prefix, cursor, limit)
        return link.dialogue.page(link.ask(request, self._settings.timeout))

    def examine(self) -> Sequence[Finding]:
        """Who the service is, what this key may do there, and for how long."""
        about = self._about(self._settings.timeout)
        link = self._connected(self._settings.timeout)
        answer = link.ask(link.dialogue.limits(), self._settings.timeout)
        return examining.findings(about, link.dialogue.ttls(answer), self._settings)

    def _about(self, timeout: float) -> About:
        """Ask who is there, which also shows whether the key is good."""
        link = self._connected(timeout)
        answer = link.ask(link.dialogue.about(), timeout)
        try:
            about = link.dialogue.who(answer)
        except BaseException:
            link.close()
            raise
        self._promises.learn(about)
        return about

    def _connected(self, timeout: float) -> SocketLink:
        link = self._link
        if link is None or not link.usable:
            link = self._link = dial(self._settings, timeout)
        return link

    # -- notifications ------------------------------------------------------------------------------------

    def subscribe(self, timeout: float) -> None:
        if self._bell is None:
            self._listen()
            self._bell = Waker()

    def _listen(self) -> None:
        """Let there be a stream, and with it an inbox; without, nothing is pushed, and all else goes on."""
        try:
            self._stream = SocketStream(self._settings)
        except BackendUnavailable as error:
            log.debug("no stream of %s: %s", self._settings.shown, error)
            self._spread.put_off()
            self.inbox = self.inbox or nowhere()
        else:
            self._spread.succeed()
            self.inbox = self._stream.ear.inbox

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        if self._bell is None:
            return ()
        stream = self._stream
        if stream is None:
            return self._try_again(self._bell, timeout)
        try:
            found = self._wait(stream, self._bell, timeout)
        except DibsError:
            self._end_stream()
            self._spread.put_off()
            self._bell.wait(self._spread.left)
            raise
        if stream.ear.missed:
            stream.ear.missed = False
            raise BackendUnavailable(MISSED_SOME)
        return found

    def _try_again(self, bell: Waker, timeout: float | None) -> Sequence[Notification]:
        """Wait until it is time to try for a stream once more, and do."""
        left = self._spread.left
        rang = bell.wait(left if timeout is None else min(left, timeout))
        if not rang and not self._spread.left:
            self._listen()
            if self._stream is not None:
                raise BackendUnavailable(MISSED_SOME)
        return ()

    def _wait(
        self, stream: SocketStream, bell: Waker, timeout: float | None
    ) -> Sequence[Notification]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            arrived = stream.receive()
            left = None if end is None else end - time.monotonic()
            if arrived or stream.ear.missed or (left is not None and left <= 0):
                return arrived
            due = stream.due_in()
            left = due if left is None else min(left, due)
            if bell.wait(left, stream.socket):
                return ()

    def wake(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.wake()

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here."""
        link, stream, bell = self._link, self._stream, self._bell
        self._link = self._stream = self._bell = None
        self.inbox = ""
        for each in (link, stream, bell):
            if each is not None:
                each.close()
