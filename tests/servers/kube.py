"""A Kubernetes API server for one test. It serves only Leases."""

import json
import ssl
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers.binaries import Program, kube_program
from tests.servers.ports import HOST
from tests.servers.process import ServerProcess
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

    def __init__(
        self, folder: Path, *, fsync: bool = False, program: Program | None = None
    ) -> None:
        super().__init__(folder)
        self.program = program or kube_program()
        self.fsync = fsync
        self._log = folder / "kube.log"
        self._logged = 0  # bytes in the log before this start

    @property
    def url(self) -> str:
        """Endpoint for http, which requires a token too."""
        return f"http://{HOST}:{self.port}"

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

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = ADMIN,
        secure: bool = False,
    ) -> Answer:
        """Send one request and return the answer, whatever its status. `secure` uses https."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers["Content-Type"] = "application/json"
        data = None if body is None else json.dumps(body).encode()
        url = (self.https_url if secure else self.url) + path
        request = urllib.request.Request(url, data, headers, method=method)
        trust = ssl.create_default_context(cafile=self.ca) if secure else None
        try:
            with urllib.request.urlopen(request, timeout=5, context=trust) as response:
                return Answer(HTTPStatus(response.status), json.load(response))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(HTTPStatus(error.status or 0), json.load(error))

    def _launch(self) -> ServerProcess:
        command: list[str | Path] = [self.program.path, "-dir", self.folder]
        command += ["-port", str(self.port), "-https-port", str(self.port + self.SECOND_PORT)]
        command += ["-etcd-port", str(self.port + self.SECOND_PORT + 1)]
        if self.fsync:
            command.append("-fsync")
        self._logged = self._log.stat().st_size if self._log.exists() else 0
        return ServerProcess(command, log=self._log)

    def _answers(self) -> bool:
        """Return whether it has printed its URLs, which it does when it is ready."""
        return b'"https":' in self._log.read_bytes()[self._logged :]
