"""A Kubernetes API server for one test. It serves only Leases."""

from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from tests.servers.binaries import kube_program
from tests.servers.ports import HOST
from tests.servers.server import Server

ADMIN = "admin"
"""Token of the user with all permissions."""
READER = "reader"
"""Token of the user who may get, list and watch."""
STRANGER = "stranger"
"""Token of a user without permissions, who gets 403. Requests without a token get 401."""


class Answer(NamedTuple):
    """Response of the server: the HTTP status, and the object or an API `Status`."""

    status: HTTPStatus
    body: Any


class KubeServer(Server):
    """A `dibs-kube` (see `kube/main.go`) on free loopback ports, with its data in `folder`.

    Every namespace exists. There is no RBAC, only three users with fixed tokens. A restarted server has
    its data, also after SIGKILL. With `fsync=False` a crash of the whole machine loses data.
    """

    PORT_IS_TAKEN = "address already in use"
    SECOND_PORT = 10_000  # for https; etcd uses the next one

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        super().__init__(folder)
        self.program = kube_program()
        self.fsync = fsync

    @property
    def https_url(self) -> str:
        """Endpoint for https. Clients must trust `ca`, which also covers `localhost`."""
        return f"https://{HOST}:{self.port + self.SECOND_PORT}"

    @property
    def etcd_url(self) -> str:
        """Endpoint of the etcd with the data, for gRPC and JSON."""
        return f"http://{HOST}:{self.port + self.SECOND_PORT + 1}"

    @property
    def ca(self) -> Path:
        """PEM file of the certificate authority."""
        return self.folder / "ca.crt"

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        """Send one request as the admin, and return the answer, whatever its status."""
        headers = {"Authorization": f"Bearer {ADMIN}"}
        answer = httpx2.request(method, self.url + path, json=body, headers=headers, verify=False)
        return Answer(HTTPStatus(answer.status_code), answer.json())

    def _command(self) -> list[str | Path]:
        second = self.port + self.SECOND_PORT
        command: list[str | Path] = [self.program.path, "-dir", self.folder]
        command += ["-port", str(self.port), "-https-port", str(second)]
        command += ["-etcd-port", str(second + 1)]
        return [*command, "-fsync"] if self.fsync else command

    def _answers(self) -> bool:
        """Return whether it has printed its URLs, which it does when it is ready."""
        return b'"https":' in self._started.logged()
