"""Reads HTTP/1.1 answers, and server-sent events in them, as their bytes come."""

from collections.abc import Callable
from typing import NamedTuple

import httptools

MAX_HEAD = 1 << 16
MAX_BODY = 1 << 26
"""Bytes that an answer of the service has at most."""
MAX_EVENT = 1 << 20
"""Bytes that an event of the service has at most."""


class Response(NamedTuple):
    """A complete answer, or the head of a stream."""

    status: int
    headers: dict[str, str]
    body: bytes
    lasts: bool
    """The connection can be used for another request."""


class NotHttp(Exception):
    """The answer is not HTTP, or is too large."""


class ResponseReader:
    """Parses answers from bytes. It cannot be used again after an error.

    `heed` is called with the head of an answer. It may return a function that gets the pieces of the body
    as they come.
    """

    def __init__(self) -> None:
        self.heed: Callable[[Response], Callable[[bytes], None] | None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._found: list[Response] = []
        self._begin()

    def _begin(self) -> None:
        self._head: list[tuple[bytes, bytes]] = []
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._size, self._most = 0, MAX_HEAD
        self._take: Callable[[bytes], None] | None = None

    def feed(self, data: bytes | memoryview) -> list[Response]:
        """Return the answers that are complete now. Raises `NotHttp`, or what the taker of a piece raises."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or NotHttp(str(error)) from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise NotHttp(str(error)) from None
        self._check_size()
        found, self._found = self._found, []
        return found

    # -- what the parser calls ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        self._head.append((name, value))

    def on_headers_complete(self) -> None:
        self._check_size()
        self._size, self._most = 0, MAX_BODY
        self._headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._head
        }
        if self.heed is not None:
            self._take = self.heed(self._answer())

    def on_body(self, piece: bytes) -> None:
        if self._take is not None:
            self._take(piece)
        else:
            self._size += len(piece)
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:  # else it only says that an answer will come
            self._found.append(self._answer())

    def _check_size(self) -> None:
        if self._size > self._most:
            raise NotHttp("the answer is too large")

    def _answer(self) -> Response:
        return Response(
            self._parser.get_status_code(),
            self._headers,
            self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces),
            self._parser.should_keep_alive(),
        )


class Events:
    """Parses events from bytes, as pairs of kind and data. Comments only show that the sender is alive."""

    def __init__(self) -> None:
        self.last_id: str = ""
        """The id of the last complete event that had one; the next request continues there."""
        self._id = ""
        self._rest = b""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """Return the events that are complete now. Raises `ValueError` if one is too large or not UTF-8."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError("an event is too large")
        found = []
        for line in lines:
            text = line.removesuffix(b"\r").decode()
            if text:
                self._take(text)
            elif self._data:
                found.append((self._kind or "message", "\n".join(self._data)))
            if not text:
                self._kind, self._data, self.last_id = "", [], self._id
        return found

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
