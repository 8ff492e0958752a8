"""A stream that a thread waits on."""

import socket
import ssl
import time

from dibs.backends.http.settings import Settings
from dibs.backends.http.socket_link import dial
from dibs.backends.http.stream import Ear
from dibs.backends.http.trouble import broken
from dibs.model import Wakeup

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

    def receive(self) -> list[Wakeup]:
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

    def patience(self) -> float:
        """How long to wait for something to come before it is dead, in seconds."""
        return max(self._heard_at + self.ear.longest - time.monotonic(), 0.0) + 0.01

    def close(self) -> None:
        """Hang up."""
        self._link.close()
