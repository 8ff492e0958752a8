"""Servers for the torture, and the URL of each by way of a proxy."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dibs.testing import FaultProxy
from tests.servers.etcd import EtcdServer
from tests.servers.server import Server


class Made(NamedTuple):
    """How a store's server is made."""

    server: Callable[[Path], Server]
    url: Callable[[Server, FaultProxy, Path], str]
    """The store's URL through the proxy; a folder for files that it needs."""


STORES: dict[str, Made] = {
    "etcd": Made(EtcdServer, lambda server, proxy, folder: f"etcd://127.0.0.1:{proxy.port}"),
}
