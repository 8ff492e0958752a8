"""A subscription that a thread waits on."""

import socket
import ssl
import time
from typing import Any

from dibs.backends.redis.link import HiredisError
from dibs.backends.redis.socket_link import SocketLink
from dibs.backends.redis.subscription import PING, PING_EVERY, Ear
from dibs.backends.redis.trouble import broken
from dibs.errors import DibsError
from dibs.model import Wakeup

_NOTHING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class SocketSubscription:
    """A connection on which one inbox's pushes arrive, and which is asked whether it is still there.

    Made when it stands. After any error it is of no use any more.
    """

    def __init__(self, link: SocketLink, inbox: str, timeout: float) -> None:
        self.socket: socket.socket = link.socket
        self.endpoint = link.endpoint
        self._link = link
        self._ear = Ear(inbox, link.endpoint)
        self._early: list[Wakeup] = []
        self._asked = False
        try:
            self._begin(time.monotonic() + timeout)
        except BaseException as error:
            link.close()
            if isinstance(error, OSError | HiredisError) and not isinstance(error, DibsError):
                raise broken(error, link.endpoint) from error
            raise
        self._heard = time.monotonic()

    def _begin(self, until: float) -> None:
        self.socket.sendall(self._ear.request)
        while not self._ear.stands:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            self._take(self._link.read())
        self.socket.settimeout(0)

    def _take(self, replies: list[Any]) -> None:
        for reply in replies:
            self._early += self._ear.hear(reply)

    def receive(self) -> list[Wakeup]:
        """What has come, without waiting. Raises `BackendUnavailable` if nothing can come any more."""
        try:
            self._read_all()
            self._ask_if_silent()
        except (OSError, HiredisError) as error:
            raise broken(error, self._link.endpoint) from error
        found, self._early = self._early, []
        return found

    def _read_all(self) -> None:
        try:
            while True:  # TLS may have read more than the socket shows
                self._take(self._link.read())
                self._heard, self._asked = time.monotonic(), False
        except _NOTHING:
            pass

    def _ask_if_silent(self) -> None:
        silent = time.monotonic() - self._heard
        if silent >= 2 * PING_EVERY:
            raise TimeoutError
        if silent >= PING_EVERY and not self._asked:
            self._asked = True
            self.socket.send(PING)

    def patience(self) -> float:
        """How long to wait for something to come before asking is due, in seconds."""
        due = self._heard + (2 if self._asked else 1) * PING_EVERY
        return max(due - time.monotonic(), 0.0) + 0.01

    def close(self) -> None:
        """Hang up."""
        self._link.close()
