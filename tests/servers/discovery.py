"""What `kubectl --dry-run=client` asks of an API server before it reads a file: which kinds there are."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

KINDS = {
    "v1": {"ConfigMap": "configmaps", "Pod": "pods", "Service": "services"},
    "apps/v1": {"Deployment": "deployments"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
}


def _group(version: str) -> dict[str, Any]:
    name, _, number = version.partition("/")
    this = {"groupVersion": version, "version": number}
    return {"name": name, "versions": [this], "preferredVersion": this}


def _resources(version: str) -> dict[str, Any]:
    found = [
        {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["create"]}
        for kind, name in KINDS[version].items()
    ]
    kind = {"kind": "APIResourceList", "apiVersion": "v1"}
    return {**kind, "groupVersion": version, "resources": found}


GROUPS = [version for version in KINDS if "/" in version]
ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(map(_group, GROUPS))},
    "/api/v1": _resources("v1"),
    **{f"/apis/{version}": _resources(version) for version in GROUPS},
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = ANSWERS.get(self.path.partition("?")[0])
        body = json.dumps(found or {}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *args: object) -> None: ...


@contextmanager
def Discovery() -> Iterator[SimpleNamespace]:  # noqa: N802 -- read as a class
    """Such a server, and its `url`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
