"""Where the service is and how it is spoken to, however that was said."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dibs.model import Capabilities
from dibs.stores.http.wire import About

if TYPE_CHECKING:
    import ssl

UNASKED = Capabilities(
    scope="cluster", clock=False, fenced=False, notifies=False, asked=False, circles=False
)
"""Until the service has been asked: as little as can be."""


class Promises:
    """What a service was last heard to promise; shared by all connections of a store."""

    def __init__(self) -> None:
        self.known = UNASKED

    def learn(self, about: About) -> None:
        """The service has said what its stores promise.

        Whoever reaches the service shares its stores, so that even a single host's is a cluster's.
        """
        promises = about.promises
        self.known = Capabilities(
            scope="cluster",
            clock=promises.clock,
            durable=promises.durable,
            fenced=promises.fenced,
            notifies=promises.notifies,
            survives=frozenset(promises.survives),
            circles=False,
        )


CONNECT_TIMEOUT = 5.0
"""How long connecting may take, with TLS, in seconds."""

TIMEOUT = 10.0
"""How long an answer may take at most, in seconds; a call whose leases are short waits less."""

IDLE = 50.0
"""A connection over which nothing was said for longer is not used again, in seconds: what is between us and
the service forgets it, most of them after a minute."""


LARGEST = 1 << 19
"""A request of more bytes than that is sent as two: the service, and what is before it, take only so much."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key, and where it was found, for error messages."""

    secret: str = field(repr=False)
    place: str


type FindKey = Callable[[], Key | None]
"""Asked for with each connection, so that a new key in a file is used soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that a connection needs to know."""

    shown: str
    """The store's URL, without any key."""
    host: str
    port: int
    base: str = ""
    """What comes before `/v1`: a path without a slash at its end."""
    find_key: FindKey = field(default=lambda: None, repr=False)
    tls: "Callable[[], ssl.SSLContext] | None" = None
    """How a connection is encrypted: a function, as reading certificates takes time."""
    connect_timeout: float = CONNECT_TIMEOUT
    timeout: float = TIMEOUT

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (80 if self.tls is None else 443) else f"{host}:{self.port}"
