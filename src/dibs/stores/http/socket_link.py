"""A connection for a thread: each call sends, then waits for its answer, and nothing suspends."""

import select
import socket
import time

from dibs.stores.http.dialogue import Dialogue, keep_alive
from dibs.stores.http.reading import Answer, Reader
from dibs.stores.http.settings import IDLE, Settings
from dibs.stores.http.trouble import broken, unreachable

BUFFER = 65536
"""So many bytes are read at a time."""


class SocketLink:
    """One request at a time. After any failure it is of no use any more."""

    def __init__(self, sock: socket.socket, dialogue: Dialogue, settings: Settings) -> None:
        self.socket = sock
        self.dialogue = dialogue
        self.reader = Reader()
        self._silent = True
        self._settings = settings
        self._open = True
        self._buffer = memoryview(bytearray(BUFFER))
        self._used = time.monotonic()
        self._timeout = 0.0

    @property
    def usable(self) -> bool:
        """A service that has hung up meanwhile is found out before anything is sent to it."""
        if self._open:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            if poll.poll(0) or time.monotonic() - self._used > IDLE:
                self.close()
        return self._open

    def ask(self, request: bytes, timeout: float) -> Answer:
        """Send a request and wait for its answer. Raises what went wrong, in our own words."""
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
            self.close()  # interrupted: the answer must not be taken for that to another request
            raise

    def send(self, request: bytes, timeout: float) -> None:
        """Send a request, whose answer is waited for at most that long at a time. Raises `OSError`."""
        self._wait_at_most(timeout)
        self.socket.sendall(request)

    def read(self) -> list[Answer]:
        """What is complete after waiting for something to come. Raises `OSError` or `NotHttp`."""
        count = self.socket.recv_into(self._buffer)
        if not count:
            raise ConnectionResetError("the service closed the connection")
        self._silent = False
        return self.reader.feed(self._buffer[:count])

    def _last_of(self, answers: list[Answer]) -> Answer:
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
        """Hang up."""
        self._open = False
        self.socket.close()


def dial(settings: Settings, timeout: float) -> SocketLink:
    """Make a link. Raises what keeps us from it, in our own words."""
    dialogue = Dialogue(settings)
    try:
        sock = _connect(settings, min(timeout, settings.connect_timeout))
    except OSError as error:
        raise unreachable(error, settings) from error
    return SocketLink(sock, dialogue, settings)


def _connect(settings: Settings, timeout: float) -> socket.socket:
    sock = socket.create_connection((settings.host, settings.port), timeout)
    try:
        keep_alive(sock)
        if settings.tls is not None:
            sock = settings.tls().wrap_socket(sock, server_hostname=settings.host)
    except BaseException:
        sock.close()
        raise
    return sock
