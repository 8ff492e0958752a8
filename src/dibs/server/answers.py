"""Answers that cost little: a status, a few headers, a body that is there as a whole."""

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

type Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")

encode = msgspec.json.Encoder().encode


class Answer:
    """A response, as an ASGI application."""

    __slots__ = ("body", "headers", "status")

    caching: ClassVar[Header] = (b"cache-control", b"no-store")

    def __init__(self, status: int, body: bytes, headers: list[Header]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send it."""
        headers = [*self.headers, self.caching]
        if self.status not in (204, 304):
            headers.append((b"content-length", b"%d" % len(self.body)))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def json(value: Any, status: int = 200, *headers: Header) -> Answer:
    """A value as JSON."""
    return Answer(status, encode(value), [JSON, *headers])


def text(value: str, status: int = 200, media: bytes = b"text/plain; charset=utf-8") -> Answer:
    """A text."""
    return Answer(status, value.encode(), [(b"content-type", media)])


def empty(status: int, *headers: Header) -> Answer:
    """Nothing but a status and headers."""
    return Answer(status, b"", list(headers))
