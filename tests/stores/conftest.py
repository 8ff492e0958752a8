"""URLs of the stores on shared servers, each with keys that no other test uses."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from secrets import token_hex

import pytest

from dibs.testing import FaultProxy
from tests.servers.certificates import self_signed
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server
from tests.servers.temporal import TemporalServer
from tests.stores import places
from tests.stores.http.serving import Served
from tests.stores.kubernetes.configs import Cluster
from tests.stores.places import Place, place_of
from tests.stores.redis.ledger_scripted import Scripted
from tests.stores.temporal.serving import brokers_for


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """The store that the test's parameter names."""
    return place_of(request.param, request)


@pytest.fixture
def way(place: Place) -> Iterator[tuple[FaultProxy, str]]:
    """A proxy on the way to that store, and the store's URL by way of it."""
    with place.proxied() as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a SQLite store."""
    return tmp_path / "leases.db"


@pytest.fixture
def etcd_url(etcd_server: EtcdServer) -> str:
    return f"etcd://127.0.0.1:{etcd_server.port}/{token_hex(6)}"


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    return f"{nats_server.url}?bucket={token_hex(6)}"


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return places.s3_url(s3_server, monkeypatch)


@pytest.fixture
def cluster(kube_server: KubeServer, tmp_path: Path) -> Cluster:
    """A namespace of the shared API server."""
    return Cluster(kube_server, tmp_path)


@pytest.fixture(scope="module")
def temporal_url(temporal_server: TemporalServer) -> Iterator[str]:
    """A namespace with a task queue that a worker serves."""
    with brokers_for(temporal_server) as url:
        yield url


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A lock service, without TLS."""
    service = Served()
    yield service
    service.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls") / "server.pem")


@pytest.fixture(scope="module")
def encrypted(certificate: Path) -> Iterator[Served]:
    """A lock service with TLS."""
    service = Served(certificate=certificate)
    yield service
    service.close()


@pytest.fixture
def scripted(redis_server: RedisServer) -> Iterator[Scripted]:
    """The ledger in Lua on an empty server."""
    with closing(Scripted(redis_server)) as subject:
        yield subject
