"""HTTP for a supervisor: is the process alive, and is it ready? On the standard library."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Self

from dibs.errors import NotConfigured

type Check = Callable[[], Coroutine[Any, Any, str | None]]
"""Returns why the answer is no, or None for yes."""

PATIENCE = 5.0
"""Seconds that a client may take for its request, and the event loop for a check."""


def host_port(text: str, what: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[::1]:PORT`. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{what} is {text!r}: write it as 127.0.0.1:8080, or 0.0.0.0:8080 for all")
    return host, int(port)


class HealthServer:
    """Answers GET and HEAD: 200 if a path's check returns None, else 503 with the reason.

    The checks run in the event loop of `async with`, so a process whose loop is stuck is not alive.
    """

    def __init__(self, host: str, port: int, checks: Mapping[str, Check]) -> None:
        self._host = host
        self._port = port
        self._checks = dict(checks)
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """`host:port`. With port 0, the free one that was found."""
        port = self._port if self._server is None else self._server.server_address[1]
        return f"[{self._host}]:{port!r}" if ":" in self._host else f"{self._host}:{port!r}"

    async def __aenter__(self) -> Self:
        try:
            self._server = _Server(self._host, self._port, self._checks)
        except OSError as error:
            raise NotConfigured(
                f"the health endpoint can't listen on {self.address}: {error.strerror or error}"
            ) from error
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="dibs-health", daemon=True
        ).start()
        return self

    async def __aexit__(self, *about: object) -> None:
        assert self._server is not None
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, checks: Mapping[str, Check]) -> None:
        self.checks = checks
        self.loop = asyncio.get_running_loop()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        check = self.server.checks.get(self.path.partition("?")[0])
        if check is None:
            return self._answer(HTTPStatus.NOT_FOUND, f"there is {' '.join(self.server.checks)}")
        checking = asyncio.run_coroutine_threadsafe(check(), self.server.loop)
        try:
            why = checking.result(PATIENCE)
        except TimeoutError:
            why = "its event loop does not answer"
        if why is None:
            return self._answer(HTTPStatus.OK, "ok")
        return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, why)

    do_HEAD = do_GET  # noqa: N815 - the names are the library's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
