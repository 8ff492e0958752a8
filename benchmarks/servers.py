"""The servers that contestants share: each is started when it is first needed, on loopback."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.servers.kube import KubeServer

FILE = "server.url"
"""In a contestant's folder: the URL of the server that it is to use."""


class Servers:
    """Redis without persistence, the others with all of their own, as they come; our service over SQLite."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._urls: dict[str, str] = {}
        self._new_database: Callable[[], str] | None = None
        self._kube: KubeServer | None = None
        self._namespaces = 0
        self.versions: dict[str, str] = {}

    def place(self, store: str, folder: str) -> None:
        """Tell a contestant's folder where its server is.

        Each gets a database of PostgreSQL, a prefix of etcd, or a namespace of Kubernetes.
        """
        if store in ("etcd", "kubernetes"):
            url = {"etcd": self._etcd, "kubernetes": self._kubernetes}[store](Path(folder))
        else:
            shared = {"redis": self._redis, "postgres": self._postgres, "service": self._service}
            url = shared[store]()
        Path(folder, FILE).write_text(json.dumps(url))

    def _redis(self) -> str:
        if "redis" not in self._urls:
            from tests.servers.redis import RedisServer

            server = self._stack.enter_context(RedisServer(self._folder / "redis-server"))
            self._urls["redis"] = server.url
            self.versions["Redis"] = server.program.label
        return self._urls["redis"]

    def _postgres(self) -> str:
        if self._new_database is None:
            from tests.servers.postgres import PostgresServer

            server = self._stack.enter_context(PostgresServer(self._folder / "postgres-server"))
            self._new_database = server.new_database
            self.versions["PostgreSQL"] = server.program.label
        return self._new_database()

    def _service(self) -> str:
        if "service" not in self._urls:
            from tests.stores.http.processes import DibsServer

            folder = self._folder / "service"
            server = DibsServer(folder, f"sqlite:///{folder}/leases.db")
            self._urls["service"] = self._stack.enter_context(server).url
        return self._urls["service"]

    def _etcd(self, folder: Path) -> str:
        if "etcd" not in self._urls:
            from tests.servers.etcd import EtcdServer

            server = EtcdServer(self._folder / "etcd-server", fsync=True)
            self._urls["etcd"] = self._stack.enter_context(server).url
            self.versions["etcd"] = server.program.label
        return f"{self._urls['etcd'].replace('http:', 'etcd:')}/{folder.name}"

    def _kubernetes(self, folder: Path) -> str:
        """The URL names a kubeconfig in the folder, which everybody uses."""
        from tests.servers.kube import KubeServer
        from tests.stores.kubernetes.configs import kubeconfig

        if self._kube is None:
            server = KubeServer(self._folder / "kube-server", fsync=True)
            self._kube = self._stack.enter_context(server)
            self.versions["Kubernetes"] = server.program.label
        cluster = {"server": self._kube.https_url, "certificate-authority": str(self._kube.ca)}
        path = kubeconfig(folder / "kubeconfig", self._kube, cluster=cluster)
        self._namespaces += 1
        return f"kubernetes://bench-{self._namespaces}?kubeconfig={path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self._stack.close()


def url_in(folder: Path) -> str:
    """What `Servers.place` told."""
    url: str = json.loads((folder / FILE).read_text())
    return url
