"""Where a store's servers are and how they are spoken to, however that was said."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import ssl

PORT = 6379
SENTINEL_PORT = 26379

CONNECT_TIMEOUT = 5.0
"""How long connecting and logging in may take, in seconds."""

TIMEOUT = 10.0
"""How long an answer may take at most, in seconds; a call whose leases are short waits less."""

type Login = tuple[str, str]
"""A user's name and password; empty for none."""


class Endpoint(NamedTuple):
    """A server's address: a host and a port, or the path of a socket on this machine."""

    host: str
    port: int = PORT
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


type Tls = Callable[[], ssl.SSLContext]
"""How a connection is encrypted: a function, as reading certificates takes time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that a connection needs to know."""

    shown: str
    """The store's URL, without any password."""
    endpoints: tuple[Endpoint, ...]
    """The server; or some nodes of the Cluster; or the Sentinels."""
    topology: Literal["server", "sentinel", "cluster"] = "server"
    service: str = ""
    """What the Sentinels call the master."""
    login: Login = field(default=("", ""), repr=False)
    sentinel_login: Login = field(default=("", ""), repr=False)
    db: int = 0
    protocol: int = 2
    tls: Tls | None = None
    holdoff: float = 0.0
    """How long nothing is granted after the server came back empty, in seconds."""
    connect_timeout: float = CONNECT_TIMEOUT
    timeout: float = TIMEOUT
