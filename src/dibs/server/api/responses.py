"""Starlette responses with a body that is there as a whole, and with the headers of every answer."""

from typing import Any

import msgspec
from starlette.responses import Response

type Header = tuple[bytes, bytes]

NO_STORE: Header = (b"cache-control", b"no-store")
"""Answers are of one moment and for one caller."""

encode = msgspec.json.Encoder().encode


def json_response(value: Any, status: int = 200, *headers: Header) -> Response:
    """A value as JSON."""
    return bytes_response(encode(value), "application/json", status, *headers)


def text_response(value: str) -> Response:
    """A plain text."""
    return bytes_response(value.encode(), "text/plain")


def empty_response(status: int, *headers: Header) -> Response:
    """Only a status and headers."""
    response = Response(None, status)
    response.raw_headers += (NO_STORE, *headers)
    return response


def bytes_response(body: bytes, media_type: str, status: int = 200, *headers: Header) -> Response:
    """A body that is encoded already."""
    response = Response(body, status, media_type=media_type)
    response.raw_headers += (NO_STORE, *headers)
    return response
