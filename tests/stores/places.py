"""Where stores are that tests reach over a network, and servers of their own that tests may kill."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

import pytest

from dibs.testing import FaultProxy
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.s3 import S3Server
from tests.servers.server import Server
from tests.servers.temporal import TemporalServer
from tests.stores.http.processes import DibsServer
from tests.stores.kubernetes.configs import Cluster
from tests.stores.temporal.serving import brokers_for


class Place(NamedTuple):
    """A store on a server that all tests of the worker share."""

    url: str
    port: int
    through: Callable[[FaultProxy], str]
    """The URL of the same store by way of a proxy."""

    @contextmanager
    def proxied(self) -> Iterator[tuple[FaultProxy, str]]:
        """A proxy in front of it, and its URL."""
        with FaultProxy("127.0.0.1", self.port) as proxy:
            yield proxy, self.through(proxy)


def place_of(store: str, request: pytest.FixtureRequest) -> Place:
    """Return a store with keys that no other test uses."""
    if store == "sqlite":
        file = request.getfixturevalue("tmp_path") / "leases.db"
        return Place(f"sqlite:///{file}", 0, lambda proxy: "no network leads there")
    if store == "kubernetes":
        cluster: Cluster = request.getfixturevalue("cluster")
        server = cluster.server
        return Place(
            cluster.url, server.port, lambda proxy: cluster.url_for(proxy.url_for(server.url))
        )
    if store == "http":
        served = request.getfixturevalue("served")
        return Place(
            served.url,
            int(served.world.url.rpartition(":")[2]),
            lambda proxy: proxy.url_for(served.url),
        )
    url: str = request.getfixturevalue(f"{store}_url")
    port: int = request.getfixturevalue(f"{store}_server").port
    return Place(url, port, lambda proxy: proxy.url_for(url))


@contextmanager
def own_server(
    store: str, folder: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Server, str]]:
    """A server that keeps leases over a kill, and its URL."""
    server: Server
    match store:
        case "kubernetes":
            with KubeServer(folder / "kube", fsync=True) as server:
                yield server, Cluster(server, folder).url
        case "nats":
            with NatsServer(folder / "nats") as server:
                yield server, server.url
        case "s3":
            with S3Server(folder / "s3") as server:
                yield server, s3_url(server, request.getfixturevalue("monkeypatch"))
        case "http":
            with DibsServer(folder, f"sqlite:///{folder}/leases.db") as server:
                yield server, server.url
        case "temporal":
            with TemporalServer(folder, on_file=True) as server, brokers_for(server) as url:
                yield server, url


def s3_url(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a prefix of its own in the server's bucket; the environment has its credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return f"s3://{server.bucket}/{token_hex(6)}?endpoint={server.url}"
