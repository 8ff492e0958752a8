"""How each built-in store is made for the conformance suite; one row for each scheme."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dibs.core.codec import decode_command
from dibs.core.names import fingerprint
from dibs.model import Acquire, Renew, Revoke
from dibs.stores.port import Store
from dibs.stores.registry import store_for
from dibs.testing import ManualClock
from tests.conformance.primitives import WholeSuite
from tests.conformance.temporal_time import ManualBroker
from tests.server.inside import Stores
from tests.servers.certificates import self_signed
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.moto import MotoServer
from tests.servers.nats import NatsServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.temporal import TemporalServer
from tests.stores.http.serving import Served
from tests.stores.kubernetes.configs import kubeconfig
from tests.stores.temporal.serving import brokers_for


class Memory(WholeSuite):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for("memory://", clock=clock)


class Sqlite(WholeSuite):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(f"sqlite:///{tmp_path}/leases.db", clock=clock)


class Postgresql(WholeSuite):
    """All cases share a database, as they have names of their own."""

    url: str

    @pytest.fixture(autouse=True)
    def _database(self, postgres_server: PostgresServer) -> None:
        self.url = postgres_server.url

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Redis(WholeSuite):
    """All cases share a server, as they have names of their own."""

    scheme = "redis"
    tls = False
    url: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with RedisServer(tmp_path_factory.mktemp(cls.scheme), tls=cls.tls) as server:
            cls.url = f"{cls.scheme}:{server.url.partition(':')[2]}"
            yield

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Rediss(Redis):
    scheme = "rediss"
    tls = True


class Valkey(Redis):
    scheme = "valkey"


class Valkeys(Redis):
    scheme = "valkeys"
    tls = True


class Etcd(WholeSuite):
    """All cases share a server, as they have names of their own."""

    many = 400
    scheme = "etcd"
    tls = False
    url: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with EtcdServer(tmp_path_factory.mktemp(cls.scheme), tls=cls.tls) as server:
            cls.url = f"{cls.scheme}:{server.url.partition(':')[2]}"
            if cls.tls:
                cls.url += f"?cafile={server.certificate}"
            yield

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Etcds(Etcd):
    scheme = "etcds"
    tls = True


class Kubernetes(WholeSuite):
    """All cases share a server, as they have names of their own."""

    many = 200
    url: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("kubernetes")
        with KubeServer(folder) as server:
            cls.url = f"kubernetes://default?kubeconfig={kubeconfig(folder / 'config', server)}"
            yield

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Nats(WholeSuite):
    """All cases share a server, as they have names of their own."""

    url: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with NatsServer(tmp_path_factory.mktemp("nats")) as server:
            cls.url = server.url
            yield

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class S3(WholeSuite):
    """All cases share a server, as they have names of their own."""

    url: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with (
            MotoServer(tmp_path_factory.mktemp("s3")) as server,
            pytest.MonkeyPatch.context() as environment,
        ):
            environment.setenv("AWS_ACCESS_KEY_ID", "tests")
            environment.setenv("AWS_SECRET_ACCESS_KEY", "tests")
            cls.url = f"s3://{server.bucket}?endpoint={server.url}"
            yield

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Temporal(WholeSuite):
    """All cases share a server and a worker, as they have names of their own."""

    many = 50
    rounds = 4
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
        return True

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

    tls = False
    served: Served
    stores: dict[Path, Stores]

    def replays(self, steps: Sequence[Mapping[str, Any]]) -> bool:
        """A service has limits: on ttls, on tokens to begin with, on revocations in a batch.

        It also notifies nobody of a lease again that was answered `Lost`.
        """
        batches = [each_step.get("batch", ()) for each_step in steps]
        commands = [decode_command(command, b"") for batch in batches for _, command in batch]
        for each in commands:
            if isinstance(each, Acquire | Renew) and each.ttl < 1:
                return False
            if isinstance(each, Acquire) and each.floor:
                return False
        return sum(isinstance(each, Revoke) for each in commands) <= 1

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
    "memory": Memory,
    "sqlite": Sqlite,
    "redis": Redis,
    "rediss": Rediss,
    "valkey": Valkey,
    "valkeys": Valkeys,
    "postgresql": Postgresql,
    "etcd": Etcd,
    "etcds": Etcds,
    "kubernetes": Kubernetes,
    "nats": Nats,
    "s3": S3,
    "temporal": Temporal,
    "http": Http,
    "https": Https,
}
