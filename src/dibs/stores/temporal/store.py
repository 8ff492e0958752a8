"""The store: a URL, and what it can promise."""

from typing import Any, Self
from weakref import WeakValueDictionary

import temporalio as temporalio  # so that it is told at once if it is missing

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.loop_thread import BlockingLoopConnection, LoopThread
from dibs.stores.port import BlockingConnection, Store
from dibs.stores.temporal.client.aio import AsyncTemporalConnection
from dibs.stores.temporal.client.calling import Caller
from dibs.stores.temporal.client.connecting import Connection
from dibs.stores.temporal.client.listening import Ear
from dibs.stores.temporal.client.scanning import Listings
from dibs.stores.temporal.client.settings import Settings, Target
from dibs.stores.temporal.client.threads import let_go
from dibs.stores.temporal.client.url import read_url
from dibs.stores.temporal.protocol.queues import task_queue

STARTS = 3.0
"""Seconds that connecting, and the start of a broker, may take on a busy machine."""


class TemporalStore(Store):
    """Leases in a namespace of a Temporal server: for each key a workflow, its broker.

    A worker must run the brokers: `dibs temporal worker`, or one of yours with `DibsPlugin`.

    | URL | |
    |---|---|
    | `temporal://host:7233/namespace` | that server and namespace |
    | `temporal://` | what `TEMPORAL_ADDRESS` and `TEMPORAL_NAMESPACE` say, or Temporal's settings file |
    | `temporal://?profile=prod` | another profile of that file, with its address, API key and TLS |

    Options: `task_queue` (else `TEMPORAL_TASK_QUEUE`, else `distributed-lock-tq`), `profile`,
    `config_file`, `api_key` (better `TEMPORAL_API_KEY`), `tls=true|false`, `tls_server_name`, `tls_ca`,
    `tls_cert`, `tls_key` (files).

    A profile of the file is used where the URL names no host, or names the profile: an API key that is
    kept there is not sent elsewhere. A `clock` stands in for the brokers', in tests.
    """

    capabilities = Capabilities(
        scope="cluster",
        durable=True,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._use(read_url(url), clock)

    @classmethod
    def from_client(cls, client: Any, *, clock: Clock | None = None) -> Self:
        """The store that a `temporalio.client.Client` is connected to.

        Its settings are taken, and its data converter, which brokers' workers must have too; our
        connection is our own.
        """
        config = client.service_client.config
        names = ("api_key", "tls", "rpc_metadata", "keep_alive_config", "http_connect_proxy_config")
        options = {name: getattr(config, name) for name in names}
        target = Target(
            address=config.target_host,
            namespace=client.namespace,
            options={**options, "data_converter": client.data_converter},
        )
        store = cls.__new__(cls)
        queue = task_queue()
        store._use(Settings(shown=f"temporal://{target}", task_queue=queue, given=target), clock)
        return store

    def _use(self, settings: Settings, clock: Clock | None) -> None:
        self.url = settings.shown
        self._connection = Connection(settings)
        self._clock = clock
        self._listings = Listings()
        self._ears: WeakValueDictionary[str, Ear] = WeakValueDictionary()
        self._thread = LoopThread("dibs-temporal", self.url, self._new_caller, let_go)

    def _new_caller(self) -> Caller:
        return Caller(self._connection, self._clock)

    def async_connection(self) -> AsyncTemporalConnection:
        return AsyncTemporalConnection(
            self._connection, self._listings, self._ears, self._new_caller
        )

    def blocking_connection(self) -> BlockingConnection:
        def inner() -> AsyncTemporalConnection:
            return AsyncTemporalConnection(
                self._connection, self._listings, self._ears, self._thread.shared
            )

        return BlockingLoopConnection(self._thread, inner, least_timeout=STARTS)
