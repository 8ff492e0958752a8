"""A running service, asked over HTTP by the command line, and the streams of what happens to its locks."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

import click
import msgspec

from dibs.cli.options import Kind
from dibs.cli.output import Messages
from dibs.errors import BackendUnavailable, DibsError, InvalidRequest
from dibs.model import Status
from dibs.server.lock_events import LockEvent, read_event
from dibs.stores.http import wire
from dibs.stores.http.errors import (
    broken,
    check_format,
    explain,
    is_ours,
    unreachable,
    unreadable,
)
from dibs.stores.http.names import MARK, encoded
from dibs.stores.http.stream import MISSED, SLACK
from dibs.stores.http.url import ApiKey, HttpSettings, read_url
from dibs.stores.http.wire import to_model
from dibs.stores.web.reading import Events, Response

MAX_ANSWER = 64 << 20

_MISSING = ("/problems/no-such-key", "/problems/no-such-restriction", "/problems/not-held")


class Remote:
    """A service at a URL, called with the API key that the settings name."""

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)

    @property
    def shown(self) -> str:
        """The URL, without a key."""
        return self._settings.shown

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON; None for what is not there. Raises what the service's problem means."""
        key = self._settings.find_key()
        answer = self._exchange(method, path, body, key)
        if not is_ours(answer):
            raise explain(answer, self._settings, key)
        check_format(answer, self._settings)
        found = self._read(answer.body)
        if answer.status < 300:
            return found
        told = f"{self._settings.shown}: {found.get('detail') or found.get('title')}"
        match answer.status:
            case 404 if found.get("type") in _MISSING:
                return None
            case 400 | 413:
                raise click.UsageError(told)
            case 409 if found.get("type") != "/problems/conflict":
                raise InvalidRequest(told)
            case 409:
                raise DibsError(told)
            case _:
                raise explain(answer, self._settings, key)

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, key: ApiKey | None
    ) -> Response:
        settings = self._settings
        named = headers("application/json", key) | {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with closing(connection(settings)) as link:
                link.request(method, f"{settings.base}{path}", data, named)
                answer = link.getresponse()
                return head_of(answer)._replace(body=answer.read(MAX_ANSWER))
        except (OSError, HTTPException) as error:
            raise unreachable(error, settings) from error

    def _read(self, said: bytes) -> dict[str, Any]:
        """An object of JSON. Raises `BackendUnavailable` for anything else."""
        try:
            found: Any = json.loads(said)
        except ValueError as error:
            raise unreadable(self._settings, error) from error
        if not isinstance(found, dict):
            raise unreadable(self._settings, ValueError("it is no object"))
        return cast("dict[str, Any]", found)


def connection(settings: HttpSettings) -> HTTPConnection:
    """A connection of its own, which is made with the first request."""
    host, port, timeout = settings.host, settings.port, settings.timeout
    if settings.tls is None:
        return HTTPConnection(host, port, timeout=timeout)
    return HTTPSConnection(host, port, timeout=timeout, context=settings.tls())


def headers(accept: str, key: ApiKey | None) -> dict[str, str]:
    """Headers of a request: the accepted type, and the API key."""
    named = {} if key is None else {"Authorization": f"Bearer {key.secret}"}
    return {"Accept": accept} | named


def head_of(response: HTTPResponse) -> Response:
    """An answer whose body was not read yet."""
    found = {name.lower(): value for name, value in response.getheaders()}
    return Response(response.status, found, b"", lasts=False)


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
        """Read one connection to its end. The service can announce that end."""
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
                f"{settings.shown} closed the connection during an answer; is it running?"
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
    url: str, prefix: bytes, kind: Kind | None, renewals: bool, messages: Messages
) -> Iterator[LockEvent]:
    """Yield events without end. Raises the error that ends the stream for good."""
    asked = {"prefix": MARK + encoded(prefix)} if prefix else {}
    asked |= {"kind": kind} if kind else {}
    asked |= {"renewals": "true"} if renewals else {}
    with closing(Tail(url, "/events" + (f"?{urlencode(asked)}" if asked else ""))) as tail:
        for told in tail:
            match told.kind:
                case "message":
                    yield read_event(told.data)
                case "reset":
                    messages.show("warning", "some events were missed")
                case _:
                    _report_connection(told, messages)


class LockWatch:
    """The status of a lock, each time that it changes."""

    def __init__(self, url: str, key: bytes, messages: Messages) -> None:
        kind, _, name = key.partition(b":")
        path = f"/watch/locks/{MARK}{encoded(name)}?kind={kind.decode()}"
        self._tail = Tail(url, path)
        self._messages = messages

    def take(self, timeout: float) -> Status | None:
        """The next one; None if there is none for so long."""
        told = self._tail.take(timeout)
        if told is None:
            return None
        _report_connection(told, self._messages)
        if told.kind == "status":
            status: Status = to_model(msgspec.convert(told.data, wire.Status))
            return status
        return None


def _report_connection(told: Told, messages: Messages) -> None:
    """Report a broken or restored connection."""
    match told.kind:
        case "lost":
            messages.show("warning", f"{told.data}; reconnecting")
        case "back":
            messages.show("back", f"reconnected to {told.data}")
        case _:
            pass
