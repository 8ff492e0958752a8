"""Credentials for the API server: a token, a file with one, or a plugin that makes one."""

import asyncio
import calendar
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dibs.errors import NotConfigured

READ_EVERY = 60.0
"""Seconds after which a token file is read again: Kubernetes replaces tokens before they expire."""

PLUGIN_TIMEOUT = 60.0
"""Seconds that a plugin may take."""

EARLY = 10.0
"""Seconds before the end of what a plugin made at which it is asked again."""

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Credentials(Protocol):
    """Credentials for the API server."""

    @property
    def shown(self) -> str:
        """What kind of credentials these are, for messages."""

    @property
    def certificate(self) -> Sequence[bytes]:
        """A client certificate and its key, as PEM, if they come from a plugin."""

    async def header(self) -> bytes:
        """The line of a request's head; empty if there is none. Raises `NotConfigured`."""

    def renew(self, header: bytes) -> bool:
        """Forget this header, which was answered 401. Returns whether there may be another one."""


class NoCredentials:
    """No token: perhaps a client certificate."""

    shown = "no token"
    certificate: Sequence[bytes] = ()

    async def header(self) -> bytes:
        return b""

    def renew(self, header: bytes) -> bool:
        return False


class Token(NoCredentials):
    """A token that does not change."""

    shown = "a token in the kubeconfig"

    def __init__(self, token: str) -> None:
        self._header = _bearer(token, self.shown)

    async def header(self) -> bytes:
        return self._header


class TokenFile(NoCredentials):
    """A file whose token is replaced from time to time."""

    def __init__(self, path: Path) -> None:
        self.shown: str = f"the token in {path}, read again each minute"
        self._path = path
        self._header = b""
        self._read_at = 0.0

    async def header(self) -> bytes:
        if not self._header or time.monotonic() > self._read_at + READ_EVERY:
            try:
                token = self._path.read_text()
            except (OSError, ValueError) as error:
                raise NotConfigured(f"the token file {self._path} can't be read: {error}") from None
            self._header = _bearer(token.strip(), self.shown)
            self._read_at = time.monotonic()
        return self._header

    def renew(self, header: bytes) -> bool:
        if self._header == header:
            self._header = b""
        return True


class ExecPlugin:
    """A program that makes credentials: `exec` in a kubeconfig, as cloud providers ship it."""

    def __init__(self, options: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
        self._version = str(options.get("apiVersion"))
        self._command = [str(options["command"]), *map(str, options.get("args") or ())]
        self.shown: str = f"the exec plugin {self._command[0]}"
        if self._version not in VERSIONS:
            told = f"{self.shown} has apiVersion {self._version}; supported: {', '.join(VERSIONS)}"
            raise NotConfigured(told)
        spec: dict[str, Any] = {"interactive": False}
        if options.get("provideClusterInfo"):
            spec["cluster"] = {name: cluster[name] for name in CLUSTER_INFO if name in cluster}
        said = {"apiVersion": self._version, "kind": "ExecCredential", "spec": spec}
        self._environment = {each["name"]: each["value"] for each in options.get("env") or ()}
        self._environment["KUBERNETES_EXEC_INFO"] = json.dumps(said)
        self._hint = str(options.get("installHint") or "")
        self.certificate: Sequence[bytes] = ()
        self._header: bytes | None = None
        self._until = 0.0
        self._run: asyncio.Task[bytes] | None = None
        """The run under way, or one that failed while no call waited for it."""

    async def header(self) -> bytes:
        """All calls wait for the same run. It goes on if they give up, for a later one to use."""
        if self._header is not None and time.time() <= self._until:
            return self._header
        if self._run is None:
            self._run = asyncio.create_task(self._make())
            self._run._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
            self._run.add_done_callback(lambda run: run.cancelled() or run.exception())
        run = self._run
        await asyncio.wait((run,))
        if self._run is run:  # it failed, which is told once
            self._run = None
        return run.result()

    def renew(self, header: bytes) -> bool:
        if self._header == header:  # else it has been run again since
            self._header = None
        return True

    async def _make(self) -> bytes:
        header = self._take(await asyncio.to_thread(self._output))
        self._run = None
        return header

    def _output(self) -> bytes:
        """The plugin's output. What it writes to stderr is shown to the user by itself."""
        try:
            done = subprocess.run(
                self._command,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=os.environ | self._environment,
                timeout=PLUGIN_TIMEOUT,
            )
        except FileNotFoundError:
            raise NotConfigured(f"{self.shown} is not installed. {self._hint}".strip()) from None
        except subprocess.CalledProcessError as error:
            told = f"{self.shown} failed with status {error.returncode}: run it by hand"
            raise NotConfigured(told) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotConfigured(f"{self.shown} failed: {type(error).__name__}") from None
        return done.stdout

    def _take(self, output: bytes) -> bytes:
        try:
            said = json.loads(output)
            if said["apiVersion"] != self._version:
                raise NotConfigured(f"{self.shown} answers by {said['apiVersion']!r:.80}")
            status = said["status"]
            token = status.get("token")
            pair = [status.get("clientCertificateData"), status.get("clientKeyData")]
            end = status.get("expirationTimestamp")
            self._until = float("inf") if end is None else _seconds(end) - EARLY
        except (ValueError, LookupError, TypeError, AttributeError):  # it can hold a token
            raise NotConfigured(f"{self.shown} printed no ExecCredential: run it by hand") from None
        if not token and not all(pair):
            raise NotConfigured(f"{self.shown} gave neither a token nor a certificate")
        self.certificate = [str(each).encode() for each in pair] if all(pair) else ()
        self._header = _bearer(str(token), self.shown) if token else b""
        return self._header


CLUSTER_INFO = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
)
"""Fields of the cluster that a plugin gets with `provideClusterInfo`."""


def _bearer(token: str, source: str) -> bytes:
    if not token.isascii() or not token.isprintable() or not token:
        raise NotConfigured(f"{source} is no token: it is empty, or has characters that none has")
    return b"authorization: Bearer %b\r\n" % token.encode()


def _seconds(timestamp: str) -> float:
    return calendar.timegm(
        time.strptime(timestamp.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")
    )
