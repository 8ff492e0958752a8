"""Starlette responses whose whole body is known. Headers of every answer: `Front`."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from dibs.server.api.schemas import Done

type Header = tuple[bytes, bytes]

NO_STORE: Header = (b"cache-control", b"no-store")
"""Answers are of one moment and for one caller."""

encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def json_response(value: Any, status: int = 200, *headers: Header) -> Response:
    """A value as JSON."""
    return bytes_response(encode(value), "application/json", status, *headers)


def text_response(value: str) -> Response:
    """A plain text."""
    return bytes_response(value.encode(), "text/plain; charset=utf-8")


def empty_response(status: int, *headers: Header) -> Response:
    """Only a status and headers."""
    response = Response(None, status)
    response.raw_headers += (NO_STORE, *headers)
    return response


def bytes_response(body: bytes, media_type: str, status: int = 200, *headers: Header) -> Response:
    """A body that is encoded already."""
    return _BytesResponse(
        body, status, [(b"content-type", media_type.encode()), NO_STORE, *headers]
    )


class _BytesResponse(Response):
    """Starlette's response, whose headers are bytes already: to make them of texts takes longer."""

    def __init__(self, body: bytes, status: int, headers: list[Header]) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), *headers]


# -- success, as Seaplane's Python SDK takes it -----------------------------------------------------


def is_seaplane_sdk(headers: Mapping[bytes, bytes]) -> bool:
    """Whether Seaplane's Python SDK sent a request.

    These headers together come from no other client of `requests`.
    """
    return (
        headers.get(b"user-agent", b"").startswith(b"python-requests/")
        and headers.get(b"accept") == b"application/json"
        and headers.get(b"content-type") == b"application/json"
    )


def is_seaplane_rust_sdk(headers: Mapping[bytes, bytes]) -> bool:
    """Whether Seaplane's Rust SDK sent an acquire: a media type, but no body and no `User-Agent`.

    No other client is known to send these headers together.
    """
    return (
        b"user-agent" not in headers
        and headers.get(b"accept") == b"*/*"
        and headers.get(b"content-type") == b"application/json"
        and headers.get(b"content-length", b"0") == b"0"
        and b"transfer-encoding" not in headers
    )


_DONE = json_response(Done())


def done_response(headers: Mapping[bytes, bytes], success: Literal["OK", "Ok"] = "OK") -> Response:
    """The answer of a request that succeeded. The SDK takes only this text for success."""
    return json_response(success) if is_seaplane_sdk(headers) else _DONE
