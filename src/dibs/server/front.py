"""The front of a server: uvicorn, listening on a socket of ours, and ended by us."""

import asyncio
import socket
import ssl
from contextlib import suppress

import uvicorn

from dibs.backends.http.wire import FORMAT, FORMAT_HEADER, SERVER_HEADER
from dibs.errors import NotConfigured
from dibs.server.app import Application
from dibs.server.config import ServerConfig
from dibs.server.listening import CannotListen, look_up
from dibs.server.protocol import bounded, sweep_every
from dibs.server.service import Service

BACKLOG = 2048
"""So many connections may wait to be accepted."""

HANDSHAKE = 10.0
"""Seconds that a client has to agree on TLS."""


class Front(uvicorn.Server):
    """uvicorn, listening on a socket of ours, and ended by us."""

    def __init__(self, service: Service, config: ServerConfig) -> None:
        self._service = service
        limits = config.limits
        super().__init__(
            uvicorn.Config(
                Application(service),
                http=bounded(limits, service.meters),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=bool(config.trusted_proxies),
                forwarded_allow_ips=list(config.trusted_proxies),
                server_header=False,
                timeout_graceful_shutdown=config.drain_time,  # type: ignore[arg-type]
                headers=[
                    (SERVER_HEADER, service.server_id),
                    (FORMAT_HEADER, str(FORMAT)),
                    ("x-content-type-options", "nosniff"),
                    ("cross-origin-resource-policy", "same-origin"),
                ],
            )
        )

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections from now on."""
        if not self.config.loaded:
            self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        loop = asyncio.get_running_loop()
        state = self.server_state

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=state, app_state={}, _loop=loop
            )
            return made

        await self.on_tick(0)  # sets the headers of all answers
        server = await loop.create_server(
            protocol,
            sock=sock,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE if tls else None,
        )
        self.servers = [server]
        self.started = True

    def refuse(self) -> None:
        """Accept no connection any more."""
        for server in self.servers:
            server.close()

    async def serve(self, stopping: asyncio.Event, config: ServerConfig) -> None:  # type: ignore[override]
        """Until `stopping` is set, and what runs has ended."""
        sweeper = asyncio.create_task(self._sweep(), name="dibs connections")
        ticker = asyncio.create_task(self.main_loop(), name="dibs clock")
        try:
            await stopping.wait()
            self._service.drain.begin()
            await asyncio.sleep(config.drain_delay)
            self.should_exit = True
            await ticker
            await self.shutdown()
        finally:
            for task in (sweeper, ticker):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _sweep(self) -> None:
        """Look after connections whose clients are too slow."""
        loop, pause = asyncio.get_running_loop(), sweep_every(self._service.limits)
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self.server_state.connections):
                connection.sweep(now)  # type: ignore[union-attr]
                if self.should_exit:
                    connection.shutdown()  # it came just as the others were told


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
