"""What a service tells of its locks, by its streams."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPException, HTTPResponse, IncompleteRead
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from dibs.cli.options import Kind
from dibs.cli.remote import connection, head_of, headers
from dibs.cli.voice import Voice
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Status
from dibs.server.lock_events import LockEvent, read_event
from dibs.stores.http import wire
from dibs.stores.http.errors import broken, check_format, explain, is_ours, unreachable
from dibs.stores.http.names import MARK, encoded
from dibs.stores.http.stream import MISSED, SLACK
from dibs.stores.http.url import ApiKey, HttpSettings, read_url
from dibs.stores.http.wire import to_model
from dibs.stores.web.reading import Events

BEAT = 15.0
"""So often something comes, until the service has said how often."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds between two tries to connect again: at first, and after many."""

MAX_PROBLEM = 1 << 20


class Told(NamedTuple):
    """An event, with its data. Our own are `lost`, with the reason, and `back`, with the service's URL."""

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
        self._told_lost = False
        self._closed = threading.Event()
        self._sock: socket.socket | None = None
        self._told: SimpleQueue[Told | DibsError | None] = SimpleQueue()
        threading.Thread(target=self._read_on, name="dibs tail", daemon=True).start()

    def __iter__(self) -> Iterator[Told]:
        """All events, until it is closed. Raises what ends the stream for good."""
        while (told := self.take(None)) is not None:
            yield told

    def take(self, timeout: float | None) -> Told | None:
        """The next event; None if there is none for so long. Raises what ends the stream for good."""
        try:
            told = self._told.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(told, DibsError):
            raise told
        return told

    def close(self) -> None:
        """Hang up, and ask no more. What would come then is not told."""
        self._closed.set()
        if self._sock is not None:
            with suppress(OSError):  # it may be gone already
                # not TLS's own, which would take away what the reader is using
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        self._told.put(None)

    def _tell(self, told: Told | DibsError) -> None:
        if not self._closed.is_set():
            self._told.put(told)

    def _read_on(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            stood, self._stood = self._stood, False
            try:
                self._read()
            except BackendUnavailable as error:
                if not self._ever:
                    return self._tell(error)
                if stood or self._stood:
                    self._told_lost = True
                    self._tell(Told("lost", str(error)))
            except DibsError as error:
                return self._tell(error)
            pause = FIRST_PAUSE if self._stood else min(2 * pause, LONGEST_PAUSE)
            self._closed.wait(pause)

    def _read(self) -> None:
        """One connection, to its end, which the service may foretell."""
        settings = self._settings
        try:
            with closing(connection(settings)) as link:
                link.connect()
                self._sock = sock = link.sock
                if self._closed.is_set():  # before there was anything to hang up
                    return
                key = settings.find_key()
                link.request("GET", self._path, headers=self._headers(key))
                answer = link.getresponse()
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

    def _headers(self, key: ApiKey | None) -> dict[str, str]:
        last = {"Last-Event-ID": self._last} if self._last else {}
        return headers("text/event-stream", key) | last

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
                if self._told_lost:
                    self._told_lost = False
                    self._tell(Told("back", self._settings.shown))
                told = Told(kind, json.loads(data))
                if kind == "hello":
                    sock.settimeout(MISSED * float(told.data["beat"]) + SLACK)
                self._tell(told)
            self._last = events.last_id or self._last


def _check(answer: HTTPResponse, settings: HttpSettings, key: ApiKey | None) -> None:
    """Raises what it says, unless a stream of the service's follows."""
    head = head_of(answer)
    if answer.status != 200 or not is_ours(head):
        raise explain(head._replace(body=answer.read(MAX_PROBLEM)), settings, key)
    check_format(head, settings)


def followed(
    url: str, prefix: bytes, kind: Kind | None, renewals: bool, voice: Voice
) -> Iterator[LockEvent]:
    """What happens, for ever. Raises what ends the stream for good."""
    asked = {"prefix": MARK + encoded(prefix)} if prefix else {}
    asked |= {"kind": kind} if kind else {}
    asked |= {"renewals": "true"} if renewals else {}
    with closing(Tail(url, "/events" + (f"?{urlencode(asked)}" if asked else ""))) as tail:
        for told in tail:
            match told.kind:
                case "message":
                    yield read_event(told.data)
                case "reset":
                    voice.say("warning", "some events were missed")
                case _:
                    _say_how_it_stands(told, voice)


class Watch:
    """One lock's status, as often as it changes."""

    def __init__(self, url: str, key: bytes, voice: Voice) -> None:
        kind, _, name = key.partition(b":")
        path = f"/watch/locks/{MARK}{encoded(name)}?kind={kind.decode()}"
        self._tail = Tail(url, path)
        self._voice = voice

    def take(self, timeout: float) -> Status | None:
        """The next one; None if there is none for so long."""
        told = self._tail.take(timeout)
        if told is None:
            return None
        _say_how_it_stands(told, self._voice)
        if told.kind == "status":
            status: Status = to_model(msgspec.convert(told.data, wire.Status))
            return status
        return None


def _say_how_it_stands(told: Told, voice: Voice) -> None:
    """What became of the connection, where the event is of that."""
    match told.kind:
        case "lost":
            voice.say("warning", f"{told.data}; reconnecting")
        case "back":
            voice.say("back", f"reconnected to {told.data}")
        case _:
            pass
