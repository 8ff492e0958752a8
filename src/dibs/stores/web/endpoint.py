"""The address of an HTTP server, and sockets to it; for asyncio and threads."""

import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dibs.stores.tls import Tls

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

IDLE = 50.0
"""Seconds after which an idle connection is not used again: many servers close it after a minute."""


CONNECT_TIMEOUT = 5.0
"""Seconds that connecting may take, with TLS."""


def host_and_port(host: str, port: int) -> str:
    """An address as it is written in URLs and headers."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class WebEndpoint(Protocol):
    """The address of an HTTP server, and how long connecting may take."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tls(self) -> Tls | None: ...
    @property
    def connect_timeout(self) -> float: ...


class WebServer(NamedTuple):
    """The address of one server."""

    host: str
    port: int
    tls: Tls | None
    connect_timeout: float = CONNECT_TIMEOUT

    @property
    def authority(self) -> str:
        """Host and port, for messages."""
        return host_and_port(self.host, self.port)


def keep_alive(sock: "socket.socket | TransportSocket") -> None:
    """Send without delay, and notice within a minute that the other side has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_here(host: str) -> bool:
    """Whether a host is this machine, so that nothing goes over a network."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reason(error: BaseException) -> str:
    """Why no connection could be made, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or type(error).__name__
