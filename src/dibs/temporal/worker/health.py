"""What a supervisor asks: is the process alive, and may it be relied on? A tiny HTTP server answers.

It knows GET and HEAD of a few paths. Each has a check, which says why not, or nothing if all is well.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Self

from dibs.errors import NotConfigured

type Check = Callable[[], str | None]
"""Why the answer is no; None for yes."""

PATIENCE = 5.0
"""Who has not asked within so many seconds is cut off."""
LONGEST = 4096
"""So many bytes a line of a request may have."""


def host_port(text: str, what: str) -> tuple[str, int]:
    """`HOST:PORT` or `[::1]:PORT`, taken apart. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{what} is {text!r}: write it as 127.0.0.1:8080, or 0.0.0.0:8080 for all")
    return host, int(port)


class HealthServer:
    """Answers 200 where a path's check has nothing to say, else 503 with what it says."""

    def __init__(self, host: str, port: int, checks: Mapping[str, Check]) -> None:
        self._host = host
        self._port = port
        self._checks = dict(checks)
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """`host:port`; with port 0 the one that was found free."""
        port = self._port
        if self._server is not None:
            port = self._server.sockets[0].getsockname()[1]
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._answer, self._host, self._port, limit=LONGEST
            )
        except OSError as error:
            raise NotConfigured(
                f"the health endpoint can't listen on {self.address}: {error.strerror or error}"
            ) from error
        return self

    async def __aexit__(self, *about: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                method, path = await _asked(reader)
                writer.write(self._told(method, path))
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # who asks like that gets no answer
        finally:
            writer.close()

    def _told(self, method: str, path: str) -> bytes:
        check = self._checks.get(path.partition("?")[0])
        if check is None:
            known = " ".join(self._checks)
            return _response(HTTPStatus.NOT_FOUND, f"there is {known}", method)
        if method not in {"GET", "HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "ask by GET or HEAD", method)
        why = check()
        status = HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(status, why or "ok", method)


async def _asked(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and path, once the whole head of the request was read. Raises `ValueError`."""
    method, path, _ = (await reader.readline()).decode("latin-1").split()
    while (await reader.readline()).strip():
        pass  # its headers
    return method, path


def _response(status: HTTPStatus, text: str, method: str) -> bytes:
    body = f"{text}\n".encode()
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        head.append("Allow: GET, HEAD")
    return "\r\n".join([*head, "", ""]).encode() + (b"" if method == "HEAD" else body)
