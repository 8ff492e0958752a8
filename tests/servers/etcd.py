"""An etcd for one test."""

import os
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2

from tests.servers.binaries import etcd_program, etcdctl_program
from tests.servers.certificates import key_of, self_signed
from tests.servers.ports import HOST
from tests.servers.server import Server


class EtcdServer(Server):
    """An etcd with its JSON gateway on a free loopback port, with its data in `folder`.

    `version` is one such as `"3.4"`, or None for the newest. With `tls`, clients must use https and trust
    `certificate`. `extra` are further arguments of etcd. A restarted server has its data, also after SIGKILL.
    With `fsync=False`, which needs etcd 3.5, a crash of the whole machine loses data.
    """

    PORT_IS_TAKEN = "address already in use"
    SECOND_PORT = 10_000  # for its peers

    def __init__(
        self,
        folder: Path,
        *,
        tls: bool = False,
        fsync: bool = False,
        extra: Sequence[str] = (),
        version: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.program = etcd_program(version)
        self.tls = tls
        self.fsync = fsync
        self.extra = tuple(extra)
        self.members: Sequence[EtcdServer] = [self]

    @property
    def url(self) -> str:
        """Endpoint for clients, for gRPC and JSON."""
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://{HOST}:{self.port + self.SECOND_PORT}"

    @cached_property
    def certificate(self) -> Path:
        """Self-signed certificate for `localhost` and 127.0.0.1. Its key is beside it."""
        return self_signed(self.folder / "server.pem")

    def call(self, method: str, request: Mapping[str, Any], *, token: str = "") -> Any:
        """Call the JSON gateway: `call("kv/range", {"key": base64(b"…")})`."""
        headers = {"Authorization": token} if token else {}
        with self._client() as client:
            answer = client.post(f"/v3/{method}", json=request, headers=headers)
            return answer.raise_for_status().json()

    def ctl(self, *arguments: str) -> str:
        """Run `etcdctl` on this server, and return what it prints. Raises `CalledProcessError`."""
        command = [str(etcdctl_program().path), "--endpoints", self.url, *arguments]
        environment = os.environ | {"ETCDCTL_API": "3"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    def enable_auth(self, password: str) -> None:
        """Create the user `root` with that password, then require authentication."""
        self.call("auth/user/add", {"name": "root", "password": password})
        self.call("auth/role/add", {"name": "root"})
        self.call("auth/user/grant", {"user": "root", "role": "root"})
        self.call("auth/enable", {})

    def _client(self) -> httpx2.Client:
        trust = ssl.create_default_context(cafile=self.certificate) if self.tls else False
        return httpx2.Client(base_url=self.url, verify=trust)

    def _command(self) -> list[str | Path]:
        command: list[str | Path] = [self.program.path]
        if self.program.name == "dibs-kube":
            command.append("etcd")
        command += ["--name", self.folder.name, "--data-dir", self.folder / "data"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self.peer_url]
        command += ["--initial-advertise-peer-urls", self.peer_url]
        members = ",".join(f"{member.folder.name}={member.peer_url}" for member in self.members)
        command += ["--initial-cluster", members]
        command += ["--logger", "zap", "--log-level", "warn", *self.extra]
        if not self.fsync and self.program.version >= (3, 5):
            command.append("--unsafe-no-fsync")
        if self.tls:
            command += ["--cert-file", self.certificate, "--key-file", key_of(self.certificate)]
        return command

    def _answers(self) -> bool:
        with self._client() as client, suppress(httpx2.HTTPError):
            healthy = client.get("/health").raise_for_status().json()["health"] == "true"
            return healthy and str(self.folder / "data") in client.get("/debug/vars").text
        return False
