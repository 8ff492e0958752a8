"""The stream of notifications: reading it, and pauses before it is opened again after it broke."""

import random
import time
from collections.abc import Callable
from secrets import token_urlsafe
from typing import NoReturn

import msgspec

from dibs.model import Notification
from dibs.stores.http import wire
from dibs.stores.http.requests import Requests
from dibs.stores.http.wire import notification_to_model
from dibs.stores.web.reading import Events, NotHttp, Response

MISSED = 2
"""Beats in a row that are missing when a stream is given up."""

SLACK = 1.0
"""Seconds for which a beat may be late."""

BEAT = 15.0
"""Seconds between two beats until the service has said how many."""


def nowhere() -> str:
    """An inbox for the time without a stream: nothing arrives in it, and waiters poll."""
    return f".{token_urlsafe(12)}"


MISSED_SOME = "notifications resumed; some may have been missed"

_read_hello = msgspec.json.Decoder(wire.Hello).decode
_read_push = msgspec.json.Decoder(wire.Notification).decode


class EventReader:
    """Reads the bytes of one stream of events. Subclasses take the events."""

    def __init__(self, requests: Requests) -> None:
        self.begun: bool = False
        """An event has arrived, so the stream works."""
        self.beat = BEAT
        """Seconds between two signs of life, at most."""
        self._heard_at = time.monotonic()
        self._requests = requests
        self._events = Events()

    @property
    def last_id(self) -> str:
        """The id of the last event. A new stream can go on after it."""
        return self._events.last_id

    @property
    def due(self) -> float:
        """When the stream is dead if nothing arrives, on the monotonic clock."""
        return self._heard_at + MISSED * self.beat + SLACK

    def heed(self, answer: Response) -> Callable[[bytes], None] | None:
        """Read the head of the answer. Raises the error in it if no stream follows."""
        if answer.status == 200:
            self._requests.check_stream(answer)
            return self.feed
        return None  # its body has the error

    def feed(self, piece: bytes) -> None:
        """Take a piece of the stream. Raises `NotHttp` if it cannot be read."""
        self._heard_at = time.monotonic()
        try:
            for kind, data in self._events.feed(piece):
                self.take(kind, data)
                self.begun = True
        except (ValueError, KeyError, msgspec.MsgspecError) as error:
            raise NotHttp(f"its stream can't be read: {error}") from error

    def take(self, kind: str, data: str) -> None:
        """Take an event."""
        raise NotImplementedError

    def ended(self, found: Response | Exception) -> NoReturn:
        """Raise what ended the stream: an error answer, its end, or a broken connection."""
        if isinstance(found, Exception):
            raise found
        self._requests.check_stream(found)
        raise ConnectionResetError("the service ended the stream")


class NotificationReader(EventReader):
    """Reads the stream of a client's notifications."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.inbox: str = ""
        """The address of this stream."""
        self.missed: bool = False
        """Some notifications were lost on their way to the service."""
        self._arrived: list[Notification] = []

    def take(self, kind: str, data: str) -> None:
        match kind:
            case "hello":
                hello = _read_hello(data)
                self.inbox, self.beat = hello.inbox, hello.beat
            case "notification":
                self._arrived.append(notification_to_model(_read_push(data), self.inbox))
            case "recheck":
                self.missed = True
            case _:
                pass  # of a newer service

    def arrived(self) -> list[Notification]:
        """Return the notifications that arrived since the last call."""
        arrived, self._arrived = self._arrived, []
        return arrived


SPREAD = 0.3
MOST_SPREAD = 5.0
"""Seconds of the longest random pause before the first attempt, and after many."""


class ReconnectDelay:
    """Random, growing pauses before a client opens a stream again.

    Clients whose server stopped should not all connect to the next one at once.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._due = 0.0

    def failed(self) -> None:
        """An attempt has failed, or the stream broke."""
        longest = min(SPREAD * 2**self._failures, MOST_SPREAD)
        self._due = time.monotonic() + random.uniform(0, longest)  # noqa: S311  # nobody gains by a guess
        self._failures = min(self._failures + 1, 8)

    def succeeded(self) -> None:
        """The stream works."""
        self._failures = 0

    @property
    def left(self) -> float:
        """Seconds until the next attempt."""
        return max(self._due - time.monotonic(), 0.0)
