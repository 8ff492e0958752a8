"""How each built-in store is made for the conformance suite; one row for each scheme."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from tests.conformance.primitives import WholeSuite
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

SLOW_ROUNDS = 8
"""Rounds of each contending thread at a store to which each is dear."""


class Memory(WholeSuite):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for("memory://", clock=clock)


class Sqlite(WholeSuite):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(f"sqlite:///{tmp_path}/leases.db", clock=clock)


class Shared(WholeSuite):
    """All cases share a server, as they have names of their own."""

    url: str

    @classmethod
    @contextmanager
    def serve(cls, folder: Path) -> Generator[str]:
        """A server of its own, by its URL."""
        raise NotImplementedError

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with cls.serve(tmp_path_factory.mktemp(cls.__name__.lower())) as cls.url:
            yield

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Postgresql(WholeSuite):
    """All cases share a database, as they have names of their own."""

    url: str
    every = 4

    @pytest.fixture(autouse=True)
    def _database(self, postgres_server: PostgresServer) -> None:
        self.url = postgres_server.url

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)


class Redis(Shared):
    scheme = "redis"
    tls = False

    @classmethod
    @contextmanager
    def serve(cls, folder: Path) -> Generator[str]:
        with RedisServer(folder, tls=cls.tls) as server:
            yield f"{cls.scheme}:{server.url.partition(':')[2]}"


class Rediss(Redis):
    scheme = "rediss"
    tls = True


class Valkey(Redis):
    scheme = "valkey"


class Valkeys(Redis):
    scheme = "valkeys"
    tls = True


class Etcd(Shared):
    many = 400
    every = 4
    scheme = "etcd"
    tls = False

    @classmethod
    @contextmanager
    def serve(cls, folder: Path) -> Generator[str]:
        with EtcdServer(folder, tls=cls.tls) as server:
            certificate = f"?cafile={server.certificate}" if cls.tls else ""
            yield f"{cls.scheme}:{server.url.partition(':')[2]}{certificate}"


class Etcds(Etcd):
    scheme = "etcds"
    tls = True


class Kubernetes(Shared):
    many = 200
    every = 8

    @classmethod
    @contextmanager
    def serve(cls, folder: Path) -> Generator[str]:
        with KubeServer(folder) as server:
            yield f"kubernetes://default?kubeconfig={kubeconfig(folder / 'config', server)}"


class Nats(Shared):
    every = 4

    @classmethod
    @contextmanager
    def serve(cls, folder: Path) -> Generator[str]:
        with NatsServer(folder) as server:
            yield server.url


class S3(Shared):
    every = 8
    contention = SLOW_ROUNDS

    @classmethod
    @contextmanager
    def serve(cls, folder: Path) -> Generator[str]:
        with MotoServer(folder) as server, pytest.MonkeyPatch.context() as environment:
            environment.setenv("AWS_ACCESS_KEY_ID", "tests")
            environment.setenv("AWS_SECRET_ACCESS_KEY", "tests")
            yield f"s3://{server.bucket}?endpoint={server.url}"


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
    rounds = 2
    every = 8
    contention = SLOW_ROUNDS
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

    every = 4
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
