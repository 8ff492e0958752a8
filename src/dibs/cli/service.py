"""A running service, asked over HTTP by the command line, and the streams of what happens to its locks."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, cast

import click
import msgspec

from dibs.cli.output import Messages
from dibs.errors import BackendUnavailable, DibsError, InvalidRequest
from dibs.model import Status
from dibs.stores.http import wire
from dibs.stores.http.blocking import BlockingEventStream, dial
from dibs.stores.http.errors import unreadable
from dibs.stores.http.requests import Requests
from dibs.stores.http.stream import EventReader
from dibs.stores.http.url import read_url
from dibs.stores.http.wire import to_model
from dibs.stores.waker import Waker

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
        data = None if body is None else json.dumps(body).encode()
        with closing(dial(self._settings, self._settings.timeout)) as link:
            requests = link.requests
            answer = link.ask(requests.call(method, path, data), self._settings.timeout)
        requests.check_ours(answer)
        found = self._read(answer.body)
        if answer.status < 300:
            return found
        message = f"{self._settings.shown}: {found.get('detail') or found.get('title')}"
        match answer.status:
            case 404 if found.get("type") in _MISSING:
                return None
            case 400 | 413:
                raise click.UsageError(message)
            case 409 if found.get("type") != "/problems/conflict":
                raise InvalidRequest(message)
            case 409:
                raise DibsError(message)
            case _:
                raise requests.problem(answer)

    def _read(self, body: bytes) -> dict[str, Any]:
        """An object of JSON. Raises `BackendUnavailable` for anything else."""
        try:
            found: Any = json.loads(body)
        except ValueError as error:
            raise unreadable(self._settings, error) from error
        if not isinstance(found, dict):
            raise unreadable(self._settings, ValueError("it is no object"))
        return cast("dict[str, Any]", found)


class ServiceEvent(NamedTuple):
    """An event of a stream. Our own are `lost`, with the reason, and `back`, with the service's URL."""

    kind: str
    data: Any


class Tail(Iterator[ServiceEvent]):
    """Reads one stream of a service for ever: it connects again, and goes on after the last event.

    `path` begins after `/v1`. Raises `NotConfigured` for a URL that is none. For one thread.
    """

    def __init__(self, url: str, path: str) -> None:
        settings = read_url(url)
        self._shown = settings.shown
        reader = partial(_Reader, pass_on=self._take)
        self._stream = BlockingEventStream(settings, reader, f"/v1{path}")
        self._waker = Waker()
        self._events: deque[ServiceEvent] = deque()
        self._is_up: bool | None = None
        """Whether the stream works, as last reported; None before its first event."""
        self._said_bye = False
        """The service has announced the end of the stream, as before a restart."""

    def __next__(self) -> ServiceEvent:
        while (event := self.take(60.0)) is None:
            pass
        return event

    def take(self, timeout: float) -> ServiceEvent | None:
        """Return the next event, or None after `timeout` seconds. Raises the error that ends the stream.

        It takes longer if the service does not answer while this connects.
        """
        end = time.monotonic() + timeout
        while not self._events:
            left = end - time.monotonic()
            if left <= 0:
                return None
            try:
                self._stream.receive()
            except BackendUnavailable as error:
                if self._is_up is None:
                    raise
                if self._is_up and not self._said_bye:
                    self._is_up = False
                    self._events.append(ServiceEvent("lost", str(error)))
                self._said_bye = False
            if not self._events:
                self._stream.wait(left, self._waker)
        return self._events.popleft()

    def _take(self, kind: str, data: str) -> None:
        """Take an event, while it is read."""
        self._said_bye = kind == "bye"
        if self._said_bye:
            return
        if self._is_up is False:
            self._events.append(ServiceEvent("back", self._shown))
        self._is_up = True
        self._events.append(ServiceEvent(kind, json.loads(data)))

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._waker.close()


class _Reader(EventReader):
    """Passes events on."""

    def __init__(self, requests: Requests, pass_on: Callable[[str, str], None]) -> None:
        super().__init__(requests)
        self._pass_on = pass_on

    def take(self, kind: str, data: str) -> None:
        if kind == "hello":
            self.beat = float(json.loads(data)["beat"])
        self._pass_on(kind, data)


def report_connection(event: ServiceEvent, messages: Messages) -> None:
    """Report a broken or restored connection; nothing for other events."""
    if event.kind == "lost":
        messages.show("warning", f"{event.data}; reconnecting")
    elif event.kind == "back":
        messages.show("back", f"reconnected to {event.data}")


def read_status(data: Any) -> Status:
    """The status of a lock in an event of `/v1/watch`."""
    status: Status = to_model(msgspec.convert(data, wire.Status))
    return status
