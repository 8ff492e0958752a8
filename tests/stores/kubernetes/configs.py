"""Kubeconfigs for tests."""

import json
from pathlib import Path
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
