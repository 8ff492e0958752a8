"""Servers for the torture, and the URL of each by way of a proxy."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dibs.testing import FaultProxy
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.s3 import S3Server
from tests.servers.server import Server
from tests.stores.kubernetes.configs import kubeconfig


class Made(NamedTuple):
    """How a store's server is made."""

    server: Callable[[Path], Server]
    url: Callable[[Server, FaultProxy, Path], str]
    """The store's URL through the proxy; a folder for files that it needs."""


def _etcd(folder: Path) -> Server:
    """An etcd takes no writes once it has 2 GB of old revisions; it is killed too often to delete them."""
    return EtcdServer(folder, extra=("--quota-backend-bytes=20000000000",))


def _kubernetes(server: Server, proxy: FaultProxy, folder: Path) -> str:
    config = kubeconfig(folder / "kubeconfig", f"http://127.0.0.1:{proxy.port}")
    return f"kubernetes://default?kubeconfig={config}"


def _s3(server: Server, proxy: FaultProxy, folder: Path) -> str:
    """Workers inherit the credentials."""
    assert isinstance(server, S3Server)
    os.environ["AWS_ACCESS_KEY_ID"] = server.access_key
    os.environ["AWS_SECRET_ACCESS_KEY"] = server.secret_key
    return f"s3://{server.bucket}?endpoint=http://127.0.0.1:{proxy.port}"


STORES: dict[str, Made] = {
    "etcd": Made(_etcd, lambda server, proxy, folder: f"etcd://127.0.0.1:{proxy.port}"),
    "kubernetes": Made(KubeServer, _kubernetes),
    "nats": Made(NatsServer, lambda server, proxy, folder: f"nats://127.0.0.1:{proxy.port}"),
    "s3": Made(S3Server, _s3),
}
