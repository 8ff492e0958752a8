"""What `kubectl --dry-run=client` asks of an API server before it reads a file: which kinds there are."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

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
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": found,
    }


ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(version) for version in KINDS if "/" in version],
    },
    "/api/v1": _resources("v1"),
    **{f"/apis/{version}": _resources(version) for version in KINDS if "/" in version},
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


class Discovery:
    """Such a server, while it is entered."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
