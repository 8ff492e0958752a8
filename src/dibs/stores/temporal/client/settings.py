"""All that a connection needs to know: what the URL says, over a profile of Temporal's own settings."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.errors import NotConfigured

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.envconfig import ClientConfigProfile

PORT = 7233
_WITHOUT_PORT = re.compile(r"[^:/\s]+|\[[^\]]+\]")
ADDRESS = f"localhost:{PORT}"
NAMESPACE = "default"

TIMEOUT = 10.0
"""How long a call may take at most, in seconds; one whose leases are short is given less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to connect, and as whom."""

    address: str
    namespace: str
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """What `Client.connect` takes besides."""

    def __str__(self) -> str:
        return f"{self.address}/{self.namespace}"

    @classmethod
    def of(cls, client: "Client") -> "Target":
        """Where a client is connected to, for people."""
        return cls(address=client.service_client.config.target_host, namespace=client.namespace)

    @property
    def encrypted(self) -> bool:
        """It is to speak TLS."""
        return bool(self.options.get("tls"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a URL says."""

    shown: str
    """The store's URL, without anything secret."""
    task_queue: str
    """Whose workers run the brokers."""
    address: str = ""
    """Empty: the profile's."""
    namespace: str = ""
    """Empty: the profile's."""
    profile: str | None = None
    config_file: Path | None = None
    api_key: Callable[[], str] | None = field(default=None, repr=False)
    """A function, so that no repr tells it."""
    tls: bool | None = None
    tls_server_name: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    given: Target | None = None
    """Where somebody's own client is connected to, in the stead of all that."""

    def target(self) -> Target:
        """Look the profile up. Raises `NotConfigured` for one that isn't there or can't be read."""
        if self.given is not None:
            return self.given
        profile = self._profile()
        options: dict[str, Any] = dict(profile.to_client_connect_config())
        address = self.address or options.pop("target_host", None) or ADDRESS
        namespace = self.namespace or options.pop("namespace", None) or NAMESPACE
        if _WITHOUT_PORT.fullmatch(address):
            address = f"{address}:{PORT}"
        options.pop("target_host", None)
        options.pop("namespace", None)
        if self.api_key is not None:
            options["api_key"] = self.api_key()
            options.setdefault("tls", True)
        tls = self._tls()
        if tls is not None:
            options["tls"] = tls
        return Target(address=address, namespace=namespace, options=options)

    def _profile(self) -> "ClientConfigProfile":
        """The profile that is meant, with what the environment says over it.

        Where the URL names a host and no profile, nothing is read from the file: an API key that
        somebody keeps there is for another host.
        """
        from temporalio.envconfig import ClientConfigProfile

        named = self.profile or os.environ.get("TEMPORAL_PROFILE") or self.config_file
        try:
            return ClientConfigProfile.load(
                self.profile,
                config_source=self.config_file,
                disable_file=bool(self.address) and not named,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise NotConfigured(
                f"{self.shown}: Temporal's settings can't be read ({error}); "
                "`temporal config list` shows the profiles there are"
            ) from error

    def _tls(self) -> Any:
        """What the URL itself says of TLS; None: the profile decides."""
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        if self.tls is False or not (any(files) or self.tls_server_name):
            return self.tls
        from temporalio.service import TLSConfig

        try:
            ca, cert, key = (None if each is None else each.read_bytes() for each in files)
        except OSError as error:
            raise NotConfigured(f"{self.shown}: {error}") from error
        return TLSConfig(
            server_root_ca_cert=ca,
            domain=self.tls_server_name,
            client_cert=cert,
            client_private_key=key,
        )
