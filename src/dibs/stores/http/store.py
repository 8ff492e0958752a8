"""The store, and what it promises."""

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.http.blocking import BlockingHttpConnection
from dibs.stores.http.url import read_url
from dibs.stores.http.wire import About
from dibs.stores.port import AsyncConnection, BlockingConnection, Store

UNASKED = Capabilities(
    scope="cluster", clock=False, fenced=False, notifies=False, asked=False, circles=False
)
"""What is promised before the service has been asked."""


class HttpStore(Store):
    """Leases in a lock service (`dibs serve`), for clients that cannot reach its store.

    | URL | |
    |---|---|
    | `https://locks.example` | the service there |
    | `https://locks.example:8443/base` | at another port, and below a path |
    | `http://127.0.0.1:8080` | on this machine without TLS |
    | `http://locks.internal?insecure=true` | without TLS over a network that encrypts by itself |

    The API key is in `DIBS_API_KEY`, or in the file that `DIBS_API_KEY_FILE` or the option
    `key_file` names; or before the `@` of the URL. `cafile` is a file with the certificates to trust,
    instead of those that the system trusts.

    The first use asks the service what its stores promise: before that, `capabilities` promises nothing.
    The service's clock decides, so `clock` is not used.
    """

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._settings = read_url(url)
        self.url: str = self._settings.shown
        self._capabilities = UNASKED

    @property
    def capabilities(self) -> Capabilities:
        """Promises of the service when it was last asked."""
        return self._capabilities

    def _learn(self, about: About) -> None:
        """Take over what the service promises.

        Every client of the service shares its stores, so even the store of one host serves a cluster.
        """
        promises = about.promises
        self._capabilities = Capabilities(
            scope="cluster",
            clock=promises.clock,
            durable=promises.durable,
            fenced=promises.fenced,
            notifies=promises.notifies,
            survives=frozenset(promises.survives),
            circles=False,
        )

    def async_connection(self) -> AsyncConnection:
        from dibs.stores.http.aio import AsyncHttpConnection  # asyncio takes time to import

        return AsyncHttpConnection(self._settings, self._learn)

    def blocking_connection(self) -> BlockingConnection:
        return BlockingHttpConnection(self._settings, self._learn)
