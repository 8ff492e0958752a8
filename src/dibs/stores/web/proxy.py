"""Proxies between a client and an HTTP server, and the environment variables that name them."""

import asyncio
import os
import socket
from base64 import b64encode
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from dibs.stores.web.endpoint import WebEndpoint, host_and_port

MAX_HEAD = 1 << 14
"""Bytes of a proxy's answer to CONNECT, at most."""


class Proxy(NamedTuple):
    """An HTTP proxy, which is reached without TLS."""

    host: str
    port: int
    header: bytes
    """The line that authenticates at the proxy; empty if it asks for nothing."""

    async def tunnel(self, endpoint: WebEndpoint) -> socket.socket:
        """Return a socket that reaches the endpoint through this proxy, by CONNECT. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        failure: OSError = OSError(f"the proxy {self.host} has no address")
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(0)
            try:
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = OSError(f"the proxy {self.host}:{self.port}: {error}")
            except BaseException:
                sock.close()
                raise
            else:
                return await self._ask(sock, endpoint)
        raise failure

    async def _ask(self, sock: socket.socket, endpoint: WebEndpoint) -> socket.socket:
        loop = asyncio.get_running_loop()
        target = host_and_port(endpoint.host, endpoint.port).encode("latin-1")
        try:
            request = b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (target, target, self.header)
            await loop.sock_sendall(sock, request)
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                piece = await loop.sock_recv(sock, 1)  # not a byte of what the server says
                answer += piece
                if not piece or len(answer) > MAX_HEAD:
                    raise ConnectionError(f"the proxy {self.host}:{self.port} hung up")
            status = answer.split(b"\r\n", 1)[0].decode("latin-1")
            if status.split(" ")[1:2] != ["200"]:
                raise ConnectionError(f"the proxy {self.host}:{self.port} refuses: {status!r}")
        except BaseException:
            sock.close()
            raise
        return sock


def read_proxy(url: str) -> Proxy:
    """Read the URL of a proxy. Raises `ValueError`, without a password."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"a proxy by {parts.scheme}:// is not supported; it must be http://")
    header = b""
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        header = b"proxy-authorization: Basic %b\r\n" % b64encode(login)
    return Proxy(parts.hostname, parts.port or 80, header)


def proxy_from_environment(scheme: str, host: str) -> str:
    """The URL of the proxy for a server, by `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`; or nothing."""
    variable = f"{scheme}_proxy"
    url = os.environ.get(variable.upper()) or os.environ.get(variable) or ""
    if not url or host == "localhost" or _is_loopback(host):
        return ""
    exceptions = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    return "" if any(_covers(each.strip(), host) for each in exceptions.split(",")) else url


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _covers(exception: str, host: str) -> bool:
    """Whether one entry of `NO_PROXY` is for this host: `*`, a domain with those below it, or a network."""
    if exception == "*":
        return True
    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:
        domain = exception.removeprefix("*").lstrip(".").lower()
        return bool(domain) and f".{host.lower()}".endswith(f".{domain}")
