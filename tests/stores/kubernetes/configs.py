"""Kubeconfigs, and namespaces of an API server, for tests."""

import json
from pathlib import Path
from secrets import token_hex
from typing import Any

from tests.servers.kube import ADMIN, KubeServer


def kubeconfig(
    path: Path,
    server: KubeServer | str,
    *,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    **context: Any,
) -> Path:
    """Write a kubeconfig for a server, as the admin unless `user` says otherwise. JSON is YAML."""
    url = server if isinstance(server, str) else server.url
    config = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "kube", "user": "me"} | context}],
        "clusters": [{"name": "kube", "cluster": {"server": url} | (cluster or {})}],
        "users": [{"name": "me", "user": {"token": ADMIN} if user is None else user}],
    }
    path.write_text(json.dumps(config))
    return path


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
