"""How each built-in store is made for the conformance suite; one row for each scheme."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from temporalio import workflow

from dibs.core.codec import decode_command
from dibs.core.names import fingerprint
from dibs.model import Acquire, Renew, Revoke
from dibs.stores.port import Store
from dibs.stores.registry import store_for
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import BrokerInput
from dibs.temporal.broker.workflow import DibsBroker
from dibs.testing import ManualClock
from dibs.testing.conformance import BackendConformance, contending
from tests.conformance.primitives import CircleClients, ReaderClients, TaskClients
from tests.server.inside import Stores
from tests.servers.certificates import self_signed
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.s3 import S3Server
from tests.servers.temporal import TemporalServer
from tests.stores.http.serving import Served
from tests.stores.kubernetes.configs import kubeconfig
from tests.stores.places import s3_url
from tests.stores.temporal.serving import brokers_for

WHOLE = bool(os.environ.get("DIBS_WHOLE_CONFORMANCE"))


class WholeSuite(BackendConformance, ReaderClients, TaskClients, CircleClients):
    """Every case, also of primitives. These touch no store, so a store of another project needs none."""

    every = 1
    """One of so many vectors is replayed, for stores to which each is dear; all with `WHOLE`.

    `tests/stores/test_ledgers.py` asks the ledgers in Lua, in SQL and over rows without a connection.
    """

    contention = 20
    """Rounds of each thread in the cases of `Contending`; fewer likewise."""

    _seen = 0

    @pytest.fixture(autouse=True)
    def _contention(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if not WHOLE:
            monkeypatch.setattr(contending, "ROUNDS", self.contention)

    def replays(self, steps: Sequence[Mapping[str, Any]]) -> bool:
        self._seen += 1
        return WHOLE or self._seen % self.every == 0


class Memory(WholeSuite):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for("memory://", clock=clock)


class Sqlite(WholeSuite):
    every = 4

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(f"sqlite:///{tmp_path}/leases.db", clock=clock)


class Shared(WholeSuite):
    """All cases share a server with other tests of the worker, as they have names of their own."""

    server: ClassVar[str]
    """The fixture that starts it."""
    url: str

    @pytest.fixture(autouse=True)
    def _place(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.url = self.url_of(request.getfixturevalue(self.server), tmp_path)

    def url_of(self, server: Any, folder: Path) -> str:
        return f"{type(self).__name__.lower()}:{server.url.partition(':')[2]}"

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Postgresql(Shared):
    every = 8
    server = "postgres_server"


class Redis(Shared):
    every = 8
    server = "redis_server"


class Rediss(Redis):
    server = "encrypted_redis"


class Valkey(Redis):
    """The same server by another scheme."""


class Valkeys(Rediss):
    """Likewise."""


class Etcd(Shared):
    many = 400
    every = 8
    server = "etcd_server"


class Etcds(Etcd):
    server = "encrypted_etcd"

    def url_of(self, server: EtcdServer, folder: Path) -> str:
        return f"{super().url_of(server, folder)}?cafile={server.certificate}"


class Kubernetes(Shared):
    many = 200
    every = 16
    server = "kube_server"

    def url_of(self, server: KubeServer, folder: Path) -> str:
        return f"kubernetes://default?kubeconfig={kubeconfig(folder / 'config', server)}"


class Nats(Shared):
    every = 8
    server = "nats_server"


class S3(Shared):
    every = 16
    contention = 2
    server = "s3_server"

    @pytest.fixture(autouse=True)
    def _place(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = s3_url(s3_server, monkeypatch)


@workflow.defn(name=ids.BROKER)
class ManualBroker(DibsBroker):
    """Goes by the clock of the case that runs: time acts only when a command comes."""

    clock: ClassVar[ManualClock]

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)

    def _time(self) -> tuple[float, int]:
        return self.clock.now(), self.clock.stamp()

    def _let_time_act(self) -> None:
        pass

    def _next_change(self) -> float | None:
        return None


class Temporal(WholeSuite):
    """All cases share a server and a worker, as they have names of their own."""

    many = 50
    every = 16
    contention = 4
    url: str

    def replays(self, steps: Sequence[Mapping[str, Any]]) -> bool:
        """A batch is answered when all of it is applied: who waits in it may be granted already."""
        for each_step in steps:
            acquired = [
                command[1] for _, command in each_step.get("batch", ()) if command[0] == "acquire"
            ]
            told = {notification[1] for *_, notification in each_step.get("notifications", ())}
            if len(set(acquired)) < len(acquired) or told & set(map(fingerprint, acquired)):
                return False
        return super().replays(steps)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _brokers(cls, temporal_server: TemporalServer) -> Iterator[None]:
        with brokers_for(temporal_server, workflows=[ManualBroker]) as cls.url:
            yield

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        ManualBroker.clock = clock
        return store_for(self.url)


class Http(WholeSuite):
    """All cases share a server; each has a store of its own behind it, which tells the case's time."""

    every = 8
    tls = False
    served: Served
    stores: dict[Path, Stores]

    def replays(self, steps: Sequence[Mapping[str, Any]]) -> bool:
        """A service has limits: on ttls, on tokens to begin with, on revocations in a batch.

        It also notifies nobody of a lease again that was answered `Lost`.
        """
        batches = [each_step.get("batch", ()) for each_step in steps]
        commands = [decode_command(command, b"") for batch in batches for _, command in batch]
        too_short = any(isinstance(each, Acquire | Renew) and each.ttl < 1 for each in commands)
        floors = any(isinstance(each, Acquire) and each.floor for each in commands)
        revocations = sum(isinstance(each, Revoke) for each in commands)
        return not too_short and not floors and revocations <= 1 and super().replays(steps)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("served")
        certificate = self_signed(folder / "server.pem") if cls.tls else None
        cls.served, cls.stores = Served(certificate=certificate), {}
        yield
        cls.served.close()

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        if tmp_path in self.stores:
            self.served.again(self.stores[tmp_path])
        else:
            self.stores[tmp_path] = self.served.put(f"sqlite:///{tmp_path}/leases.db", clock)
        store = store_for(self.served.url)
        learnt = store.blocking_connection()
        learnt.open(10)  # so that the suite knows which cases are for it
        learnt.close()
        return store


class Https(Http):
    tls = True


HARNESSES: dict[str, type[WholeSuite]] = {
    harness.__name__.lower(): harness
    for harness in (
        *(Memory, Sqlite, Postgresql, Redis, Rediss, Valkey, Valkeys),
        *(Etcd, Etcds, Kubernetes, Nats, S3, Temporal, Http, Https),
    )
}
