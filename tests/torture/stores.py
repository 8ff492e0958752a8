"""Servers for the torture, and the URL of each by way of a proxy."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dibs.testing import FaultProxy
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.server import Server
from tests.stores.kubernetes.configs import kubeconfig


class Made(NamedTuple):
    """How a store's server is made."""

    server: Callable[[Path], Server]
    url: Callable[[FaultProxy, Path], str]
    """The store's URL through the proxy; a folder for files that it needs."""


def _kubernetes(proxy: FaultProxy, folder: Path) -> str:
    config = kubeconfig(folder / "kubeconfig", f"http://127.0.0.1:{proxy.port}")
    return f"kubernetes://default?kubeconfig={config}"


STORES: dict[str, Made] = {
    "etcd": Made(EtcdServer, lambda proxy, folder: f"etcd://127.0.0.1:{proxy.port}"),
    "kubernetes": Made(KubeServer, _kubernetes),
    "nats": Made(NatsServer, lambda proxy, folder: f"nats://127.0.0.1:{proxy.port}"),
}
