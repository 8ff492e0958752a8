"""A place in the shared API server for each test."""

from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.servers.kube import KubeServer
from tests.stores.kubernetes.configs import kubeconfig


class Cluster:
    """A namespace that no other test uses."""

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.namespace = f"test-{token_hex(6)}"
        self.leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        self.url = self.url_for(server.url)

    def url_for(self, server: KubeServer | str, **options: Any) -> str:
        """A URL of this namespace, by a kubeconfig of its own."""
        config = kubeconfig(self.folder / token_hex(4), server, **options)
        return f"kubernetes://{self.namespace}?kubeconfig={config}"

    def lease(self, name: str) -> Any:
        """The Lease as it is, for `kubectl get lease`."""
        return self.server.request("GET", f"{self.leases}/{name}").body

    def put(self, lease: Any) -> Any:
        """Write it, as somebody else does."""
        return self.server.request("PUT", f"{self.leases}/{lease['metadata']['name']}", lease)


@pytest.fixture
def cluster(kube_server: KubeServer, tmp_path: Path) -> Cluster:
    """A namespace of the shared API server."""
    return Cluster(kube_server, tmp_path)
