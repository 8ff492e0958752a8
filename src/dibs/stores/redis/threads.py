"""Threads' way to the server: everything is done in the caller's own thread."""

import socket
import ssl
import time
from collections.abc import Coroutine, Sequence
from math import inf
from typing import Any

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.port import step
from dibs.stores.redis.connection import HiredisError, SocketDial, SocketLink
from dibs.stores.redis.errors import broken
from dibs.stores.redis.ledger import CallContext
from dibs.stores.redis.pubsub import PING, PING_EVERY, new_inbox, received
from dibs.stores.redis.pubsub import subscribe as begin
from dibs.stores.redis.routing import Router
from dibs.stores.redis.scanning import Listings
from dibs.stores.redis.url import Endpoint, Settings
from dibs.stores.waker import Waker

_NOTHING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class SocketSubscription:
    """A connection on which one inbox's notifications arrive, and which is asked whether it still stands.

    After any error it is of no use any more. `found` are notifications that came while it began.
    """

    def __init__(self, link: SocketLink, inbox: str, found: list[Notification]) -> None:
        self.socket: socket.socket = link.socket
        self.endpoint: Endpoint = link.endpoint
        self._link = link
        self._inbox = inbox
        self._found = found
        self._asked = False
        self._heard = time.monotonic()
        self.socket.settimeout(0)

    def receive(self) -> list[Notification]:
        """What has come, without waiting. Raises `BackendUnavailable` if nothing can come any more."""
        try:
            try:
                while True:  # TLS may have read more than the socket shows
                    for reply in self._link.read():
                        self._found += received(reply, self._inbox, self.endpoint)
                    self._heard, self._asked = time.monotonic(), False
            except _NOTHING:
                self._ask_if_silent()
        except (OSError, HiredisError) as error:
            raise broken(error, self.endpoint) from error
        found, self._found = self._found, []
        return found

    def _ask_if_silent(self) -> None:
        silent = time.monotonic() - self._heard
        if silent >= 2 * PING_EVERY:
            raise TimeoutError
        if silent >= PING_EVERY and not self._asked:
            self._asked = True
            self.socket.send(PING)

    def due_in(self) -> float:
        """How long to wait for something to come before asking is due, in seconds."""
        due = self._heard + (2 if self._asked else 1) * PING_EVERY
        return max(due - time.monotonic(), 0.0) + 0.01

    def close(self) -> None:
        """Hang up."""
        self._link.close()


class BlockingRedisConnection:
    """See `BlockingConnection`. Once subscribed it has a second connection, on which notifications arrive."""

    def __init__(self, settings: Settings, context: CallContext, listings: Listings) -> None:
        self.inbox: str = ""
        self._settings = settings
        self._context = context
        self._dial = SocketDial()
        self._router = Router(settings, self._dial, context, listings, self._hand_on, self._follow)
        self._subscription: SocketSubscription | None = None
        self._waker: Waker | None = None
        self._arrived: list[Notification] = []
        on_fork(self)

    def open(self, timeout: float) -> None:
        self._run(self._router.open(), timeout)

    def _run[T](self, asking: Coroutine[Any, Any, T], timeout: float = inf) -> T:
        """All of it may take `timeout` seconds; each answer has its own limit besides."""
        self._dial.until = time.monotonic() + timeout
        return step(asking)

    def close(self) -> None:
        self._router.close()
        self._hang_up()

    def _hang_up(self) -> None:
        self.inbox = self._context.inbox = ""
        self._unsubscribe()
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    # -- commands -----------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        return self._run(self._router.apply(commands), timeout)

    def _hand_on(self, notifications: list[Notification]) -> None:
        if self._waker is not None:
            self._arrived += notifications

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._run(self._router.scan(prefix, cursor, limit))

    def examine(self) -> Sequence[Finding]:
        return self._run(self._router.examine())

    # -- notifications ------------------------------------------------------------------------------------

    def subscribe(self, timeout: float) -> None:
        if self._waker is None:
            inbox = new_inbox(self._settings)
            self._subscribe(inbox, timeout)
            self._waker = Waker()
            self.inbox = self._context.inbox = inbox

    def _subscribe(self, inbox: str, timeout: float = inf) -> None:
        link = self._run(self._router.dial(), timeout)
        assert isinstance(link, SocketLink)
        found = step(begin(link, inbox, self._settings.connect_timeout))
        self._subscription = SocketSubscription(link, inbox, found)

    def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    def _follow(self, endpoint: Endpoint) -> None:
        """The server is another one now, as after a failover: notifications come from there."""
        if self._subscription is not None and self._subscription.endpoint != endpoint:
            self._unsubscribe()

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        if self._waker is None:
            return ()
        if self._subscription is None:
            self._subscribe(self.inbox)
            raise BackendUnavailable("notifications resumed; some may have been missed")
        try:
            return self._wait(self._subscription, self._waker, timeout)
        except BackendUnavailable:
            self._unsubscribe()
            raise

    def _wait(
        self, subscription: SocketSubscription, waker: Waker, timeout: float | None
    ) -> Sequence[Notification]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            arrived, self._arrived = self._arrived, []
            arrived += subscription.receive()
            left = None if end is None else end - time.monotonic()
            if arrived or (left is not None and left <= 0):
                return arrived
            due = subscription.due_in()
            left = due if left is None else min(left, due)
            if waker.wait(left, subscription.socket):
                return ()

    def wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here."""
        self._router.after_fork()
        self._hang_up()
        self._arrived = []
