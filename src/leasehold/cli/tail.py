"""A stream of the service's, read in the background; when it breaks it goes on where it was."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from leasehold.backends.http.events import Events
from leasehold.backends.http.reading import Answer
from leasehold.backends.http.settings import Key, Settings
from leasehold.backends.http.stream import MISSED, SLACK
from leasehold.backends.http.trouble import broken, check_format, explain, is_ours, unreachable
from leasehold.backends.http.url import read_url
from leasehold.errors import BackendUnavailable, LeaseholdError

BEAT = 15.0
"""So often something comes, until the service has said how often."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds between two tries to connect again: at first, and after many."""

MAX_PROBLEM = 1 << 20


class Told(NamedTuple):
    """An event, with its data; `lost`, with the reason, is our own."""

    kind: str
    data: Any


class Tail:
    """See the module. `path` begins after `/v1`. Raises `NotConfigured` for a URL that is none."""

    def __init__(self, url: str, path: str) -> None:
        self._settings = read_url(url)
        self._path = f"{self._settings.base}/v1{path}"
        self._last = ""
        self._stood = False
        self._ever = False
        """It has stood once, so what ends it now may be a restart."""
        self._told: SimpleQueue[Told | LeaseholdError] = SimpleQueue()
        threading.Thread(target=self._read_on, name="leasehold tail", daemon=True).start()

    def __iter__(self) -> Iterator[Told]:
        """All events, for ever. Raises what ends the stream for good."""
        while True:
            told = self.take(None)
            if told is not None:
                yield told

    def take(self, timeout: float | None) -> Told | None:
        """The next event; None if there is none for so long. Raises what ends the stream for good."""
        try:
            told = self._told.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(told, LeaseholdError):
            raise told
        return told

    def _read_on(self) -> None:
        pause = FIRST_PAUSE
        while True:
            stood, self._stood = self._stood, False
            try:
                self._read()
            except BackendUnavailable as error:
                if not self._ever:
                    return self._told.put(error)
                if stood or self._stood:
                    self._told.put(Told("lost", str(error)))
            except LeaseholdError as error:
                return self._told.put(error)
            pause = FIRST_PAUSE if self._stood else min(2 * pause, LONGEST_PAUSE)
            time.sleep(pause)

    def _read(self) -> None:
        """One connection, to its end, which the service may foretell."""
        settings = self._settings
        try:
            with closing(_connection(settings)) as connection:
                connection.connect()
                sock = connection.sock
                key = settings.find_key()
                connection.request("GET", self._path, headers=self._headers())
                answer = connection.getresponse()
                _check(answer, settings, key)
                sock.settimeout(MISSED * BEAT + SLACK)
                self._follow(answer, sock)
        except IncompleteRead as error:
            raise BackendUnavailable(
                f"{settings.shown} hung up in the midst of an answer; is it running?"
            ) from error
        except (OSError, HTTPException, ValueError) as error:
            if not self._stood and isinstance(error, OSError):
                raise unreachable(error, settings) from error
            raise broken(error, settings) from error

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "text/event-stream"}
        key = self._settings.find_key()
        if key is not None:
            headers["Authorization"] = f"Bearer {key.secret}"
        if self._last:
            headers["Last-Event-ID"] = self._last
        return headers

    def _follow(self, answer: HTTPResponse, sock: Any) -> None:
        events = Events()
        while True:
            piece = answer.read1(65536)
            if not piece:
                raise ConnectionResetError("the service ended the stream")
            for kind, data in events.feed(piece):
                self._stood = self._ever = True
                if kind == "bye":
                    return
                told = Told(kind, json.loads(data))
                if kind == "hello":
                    sock.settimeout(MISSED * float(told.data["beat"]) + SLACK)
                self._told.put(told)
            self._last = events.last_id or self._last


def _check(answer: HTTPResponse, settings: Settings, key: Key | None) -> None:
    """Raises what it says, unless a stream of the service's follows."""
    headers = {name.lower(): value for name, value in answer.getheaders()}
    head = Answer(answer.status, headers, b"", lasts=False)
    if answer.status != 200 or not is_ours(head):
        raise explain(head._replace(body=answer.read(MAX_PROBLEM)), settings, key)
    check_format(head, settings)


def _connection(settings: Settings) -> HTTPConnection:
    if settings.tls is None:
        return HTTPConnection(settings.host, settings.port, timeout=settings.timeout)
    return HTTPSConnection(
        settings.host, settings.port, timeout=settings.timeout, context=settings.tls()
    )
