"""The front of a server: uvicorn, by its documented API, on a socket of ours."""

import asyncio
import logging
import socket
import ssl
from math import ceil

import uvicorn

from dibs.errors import NotConfigured
from dibs.server.app import build_app
from dibs.server.config import CannotListen, ServerConfig, look_up
from dibs.server.service import Service
from dibs.stores.http.wire import FORMAT, FORMAT_HEADER, SERVER_HEADER

log = logging.getLogger("dibs.server")

BACKLOG = 2048
"""Connections that may wait to be accepted."""


class Front:
    """uvicorn, which runs from `begin` to `end`."""

    def __init__(self, service: Service, config: ServerConfig, tls: ssl.SSLContext | None) -> None:
        self._service = service
        self._config = config
        self._serving: asyncio.Task[None] | None = None
        headers = [
            (SERVER_HEADER, service.server_id),
            (FORMAT_HEADER, str(FORMAT)),
            ("x-content-type-options", "nosniff"),
            ("cross-origin-resource-policy", "same-origin"),
        ]
        if tls is not None:
            headers.append(("strict-transport-security", "max-age=31536000"))
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                build_app(service),
                http="httptools",
                ws="none",
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
        """Tell clients to go elsewhere, give balancers time to notice, then `end`."""
        self._service.drain.begin()
        await asyncio.sleep(self._config.drain_delay)
        await self.end()

    async def end(self) -> None:
        """Accept no more connections, and wait for requests for as long as `drain_time`."""
        self._uvicorn.should_exit = True
        if self._serving is not None:
            await self._serving


def listening_socket(config: ServerConfig) -> socket.socket:
    """A socket of our own. Raises `CannotListen`; `NotConfigured` for a port that is for others."""
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
    """Where it is found that listens there."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{shown}:{port}"


def allow_files(wanted: int) -> None:
    """Ask the system for so many open files, and so connections, or for as many as it gives."""
    try:
        import resource
    except ImportError:
        return  # it knows no such bound
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning("no more than %d files can be open: %s", soft, error)
