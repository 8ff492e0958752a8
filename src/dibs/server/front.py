"""The front of a server: uvicorn, by its documented API, on a socket of ours, with TLS or without."""

import asyncio
import logging
import socket
import ssl
from functools import partial
from math import ceil
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from dibs.errors import NotConfigured
from dibs.server.config import CannotListen, ServerConfig, look_up
from dibs.server.shutdown import Shutdown
from dibs.stores.http.wire import FORMAT, FORMAT_HEADER, SERVER_HEADER

log: logging.Logger = logging.getLogger("dibs.server")

BACKLOG = 2048
"""Connections that may wait to be accepted."""


class Front:
    """uvicorn, which runs from `begin` to `end`."""

    def __init__(
        self,
        app: ASGIApp,
        server_id: str,
        shutdown: Shutdown,
        config: ServerConfig,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._shutdown = shutdown
        self._config = config
        self._serving: asyncio.Task[None] | None = None
        headers = [
            (SERVER_HEADER, server_id),
            (FORMAT_HEADER, str(FORMAT)),
            ("x-content-type-options", "nosniff"),
            ("cross-origin-resource-policy", "same-origin"),
        ]
        if tls is not None:
            headers.append(("strict-transport-security", "max-age=31536000"))
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                interface="asgi3",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=bool(config.trusted_proxies),
                forwarded_allow_ips=list(config.trusted_proxies),
                server_header=False,
                backlog=BACKLOG,
                limit_concurrency=config.limits.connections + 1,  # it refuses at this number
                timeout_keep_alive=ceil(config.limits.idle_time),
                timeout_graceful_shutdown=ceil(config.drain_time),
                ssl_context_factory=None if tls is None else lambda *_: tls,
                headers=headers,
            )
        )

    async def begin(self, sock: socket.socket, stopping: asyncio.Event) -> None:
        """Accept connections. `stopping` is set if uvicorn ends by itself."""
        self._serving = serving = asyncio.create_task(self._uvicorn.serve(sockets=[sock]))
        serving.add_done_callback(lambda _: stopping.set())
        while not (self._uvicorn.started or serving.done()):  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Fail `/readyz` and end long answers, wait `drain_delay` for load balancers, then `end`."""
        self._shutdown.begin()
        await asyncio.sleep(self._config.drain_delay)
        await self.end()

    async def end(self) -> None:
        """Accept no more connections, and wait for requests for as long as `drain_time`."""
        self._uvicorn.should_exit = True
        if self._serving is not None:
            await self._serving


def listening_socket(config: ServerConfig) -> socket.socket:
    """Open the socket. Raises `CannotListen`; `NotConfigured` for a port that is for others."""
    found = look_up(config.listen, *config.address)
    try:
        sock = socket.socket(found.family, found.kind, found.protocol)
    except OSError as error:
        raise NotConfigured(f"{config.listen} is no address here: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(found.address)
        sock.listen(BACKLOG)
        sock.setblocking(False)  # noqa: FBT003
    except OSError as error:
        sock.close()
        kind_of = NotConfigured if isinstance(error, PermissionError) else CannotListen
        raise kind_of(
            f"can't listen on {config.listen}: {error.strerror}; choose another with --listen HOST:PORT"
        ) from error
    return sock


def url_of(sock: socket.socket, *, secure: bool) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{shown}:{port}"


def allow_files(wanted: int) -> None:
    """Raise the limit of open files, and so of connections, as far as the system allows."""
    try:
        import resource
    except ImportError:
        return  # not on this system
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning("no more than %d files can be open: %s", soft, error)


# -- TLS --------------------------------------------------------------------------------------------


def context_for(certificate: str, key: str) -> ssl.SSLContext | None:
    """The TLS settings of connections; None without a certificate.

    Raises `NotConfigured` for files that can't be read or do not belong together.
    """
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for setting, path in (("tls_cert", certificate), ("tls_key", key)):
        if not Path(path).is_file():
            raise NotConfigured(f"{setting}: no such file: {path}")
    _check(certificate, key)
    try:
        context.load_cert_chain(certificate, key, password=partial(_locked, key))
    except (OSError, ssl.SSLError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            message = f"{key} is not the private key of the certificate in {certificate}"
            raise NotConfigured(message) from error
        raise NotConfigured(f"{certificate} and {key} do not serve: {error}") from error
    return context


def _check(certificate: str, key: str) -> None:
    """Raises `NotConfigured` for a file that has something else in it: OpenSSL would not say which."""
    for path, other, wanted in (
        (certificate, key, "certificate"),
        (key, certificate, "private key"),
    ):
        if not _has(path, wanted):
            swapped = ": are the two swapped?" if _has(other, wanted) else ""
            raise NotConfigured(f"{path} has no {wanted} in PEM{swapped}")


def _has(path: str, what: str) -> bool:
    """Whether the file has such a block. Raises `NotConfigured` if it can't be read."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise NotConfigured(f"{path} can't be read: {error.strerror}") from error
    end = what.upper().encode() + b"-----"
    return any(line.startswith(b"-----BEGIN ") and line.rstrip().endswith(end) for line in lines)


def _locked(key: str) -> str:
    """Instead of OpenSSL's question on the terminal."""
    raise NotConfigured(f"{key} has a passphrase: give a key without, which only the server reads")
