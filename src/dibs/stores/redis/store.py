"""The store: a URL, and what it can promise."""

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.port import AsyncConnection, BlockingConnection, Store
from dibs.stores.redis.ledger import CallContext
from dibs.stores.redis.scanning import Listings
from dibs.stores.redis.threads import BlockingRedisConnection
from dibs.stores.redis.url import read_url


class RedisStore(Store):
    """Leases in Redis or Valkey, shared by everybody who reaches it.

    | URL | |
    |---|---|
    | `redis://user:password@host:6379/0` | one server; `valkey://` is the same |
    | `rediss://host` | by TLS; `valkeys://` is the same |
    | `redis:///run/redis/redis.sock?db=0` | a socket on this machine |
    | `redis://a,b,c/0?sentinel=mymaster` | the master of that name, as Sentinels at a, b and c know it |
    | `redis://a,b,c?cluster=true` | a Cluster, some of whose nodes are a, b and c |

    Options that redis-py's URLs also have mean the same: `db`, `socket_connect_timeout` and
    `socket_timeout` (of one try), and for TLS `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
    `ssl_cert_reqs` (`required` or `none`), `ssl_check_hostname`.
    Sentinels with logins of their own take `sentinel_username` and `sentinel_password`.
    `restart_holdoff=60s` grants nothing for so long after a server has started, whatever it kept.

    Everything of ours is called `dibs:…`; `errors.RIGHTS` is what a user of an ACL needs.

    A `clock` stands in for the server's, in tests.
    """

    capabilities: Capabilities = Capabilities(scope="cluster", survives=frozenset({"crash"}))

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._settings = read_url(url)
        self.url: str = self._settings.shown
        self._clock = clock
        self._listings = Listings()

    def async_connection(self) -> AsyncConnection:
        from dibs.stores.redis.aio import AsyncRedisConnection  # asyncio takes time to import

        return AsyncRedisConnection(self._settings, self._context(), self._listings)

    def blocking_connection(self) -> BlockingConnection:
        return BlockingRedisConnection(self._settings, self._context(), self._listings)

    def _context(self) -> CallContext:
        return CallContext(self._clock, self._settings.holdoff)
