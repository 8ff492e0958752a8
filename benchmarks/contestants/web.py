"""Plain requests to a server by our own HTTP client, without a store: what a lock's calls cost at least."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from dibs.stores.web.client import WebClient

if TYPE_CHECKING:
    import ssl


class At(NamedTuple):
    """Where requests go."""

    host: str
    port: int
    tls: "Callable[[], ssl.SSLContext] | None" = None
    connect_timeout: float = 5.0


def connect(url: str, tls: "Callable[[], ssl.SSLContext] | None" = None) -> WebClient:
    """A client of the server at this URL; it connects when it is used."""
    at = urlsplit(url)
    where = At(at.hostname or "", at.port or 0, tls)
    return WebClient(where, time.monotonic, lambda *date: None)
