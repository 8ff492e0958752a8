"""A Kubernetes API server of its own for a test: it serves Leases and nothing else."""

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
"""The token of the user who may do everything."""
READER = "reader"
"""The token of the user who may get, list and watch."""
STRANGER = "stranger"
"""The token of a user who may do nothing: 403. Without a token it is 401."""


class Answer(NamedTuple):
    """What the server answered: the status, and the object or an API `Status`."""

    status: HTTPStatus
    body: Any


class KubeServer(Server):
    """A `dibs-kube` (see `kube/main.go`) on free loopback ports; its data lie in `folder`.

    It has no namespaces (any name does) and no RBAC, but three users with tokens. With `fsync=False` only
    a crash of the whole machine could lose data, not a killed process.
    """

    PORT_IS_TAKEN = "address already in use"
    SECOND_PORT = 10_000  # for https; the one after that is etcd's

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
        """By http, which asks for a token as https does."""
        return f"http://{HOST}:{self.port}"

    @property
    def https_url(self) -> str:
        """By https; clients must trust `ca`. It is also for `localhost`."""
        return f"https://{HOST}:{self.port + self.SECOND_PORT}"

    @property
    def etcd_url(self) -> str:
        """Of the etcd that has the data, by gRPC or its JSON gateway."""
        return f"http://{HOST}:{self.port + self.SECOND_PORT + 1}"

    @property
    def ca(self) -> Path:
        """The certificate authority to trust, as PEM."""
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
        """Send one request, to look behind the scenes."""
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
        """Whether it has printed where it serves, which it does when it is ready."""
        return b'"https":' in self._log.read_bytes()[self._logged :]
