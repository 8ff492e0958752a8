"""Reads HTTP/1.1 answers as their bytes come, whoever brings them."""

from collections.abc import Callable
from typing import NamedTuple

import httptools

MAX_HEAD = 1 << 16
MAX_BODY = 1 << 26
"""More than that is no answer of the service's, in bytes."""


class Answer(NamedTuple):
    """A whole answer; of a stream, its head."""

    status: int
    headers: dict[str, str]
    body: bytes
    lasts: bool
    """The connection can be used for another request."""


class NotHttp(Exception):
    """What came is not HTTP, or more than anybody should send."""


class Reader:
    """Makes answers of bytes. After an error it is of no use any more.

    `heed`, if it is there when an answer's head has come, takes that head and may give what is to take
    the pieces of the body as they come.
    """

    def __init__(self) -> None:
        self.heed: Callable[[Answer], Callable[[bytes], None] | None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._found: list[Answer] = []
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self._take: Callable[[bytes], None] | None = None

    def feed(self, data: bytes | memoryview) -> list[Answer]:
        """What is complete now. Raises `NotHttp`, or whatever the taker of a piece raises."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or NotHttp(str(error)) from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise NotHttp(str(error)) from None
        found, self._found = self._found, []
        return found

    # -- what the parser calls ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value), MAX_HEAD)
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._size = 0
        if self.heed is not None:
            self._take = self.heed(self._answer())

    def on_body(self, piece: bytes) -> None:
        if self._take is not None:
            self._take(piece)
        else:
            self._grow(len(piece), MAX_BODY)
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:  # else it only says that an answer will come
            self._found.append(self._answer())

    def _answer(self) -> Answer:
        return Answer(
            self._parser.get_status_code(),
            self._headers,
            self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces),
            self._parser.should_keep_alive(),
        )

    def _grow(self, by: int, most: int) -> None:
        self._size += by
        if self._size > most:
            raise NotHttp("the answer is too large")
