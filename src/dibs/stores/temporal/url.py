"""Temporal URLs, over a profile of Temporal's own settings. See `TemporalStore` for the form."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.temporal.ids import task_queue
from dibs.stores.url_options import Read, flag, read_options, text

PORT = 7233
ADDRESS = f"localhost:{PORT}"
NAMESPACE = "default"

_WITHOUT_PORT = re.compile(r"[^:/\s]+|\[[^\]]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalTarget:
    """The server and namespace to connect to, and the login."""

    address: str
    namespace: str
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Further arguments of `Client.connect`."""

    def __str__(self) -> str:
        return f"{self.address}/{self.namespace}"

    @classmethod
    def of(cls, client: Client) -> Self:
        """The target of a client, for people."""
        return cls(address=client.service_client.config.target_host, namespace=client.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalSettings:
    """The settings of a URL."""

    shown: str
    """The store's URL, without anything secret."""
    task_queue: str
    """Task queue whose workers run the brokers."""
    address: str = ""
    """Empty: the profile's."""
    namespace: str = ""
    """Empty: the profile's."""
    profile: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tls: bool | None = None

    def target(self) -> TemporalTarget:
        """Look the profile up, overridden by the environment. Raises `NotConfigured` if it cannot be read.

        Where the URL names a host and no profile, nothing is read from the file: an API key in it is for
        another host.
        """
        named = self.profile or os.environ.get("TEMPORAL_PROFILE")
        try:
            profile = ClientConfigProfile.load(
                self.profile, disable_file=bool(self.address) and not named
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise NotConfigured(
                f"{self.shown}: Temporal's settings can't be read ({error}); "
                "`temporal config list` shows the profiles there are"
            ) from error
        options: dict[str, Any] = dict(profile.to_client_connect_config())
        address = self.address or options.get("target_host") or ADDRESS
        namespace = self.namespace or options.get("namespace") or NAMESPACE
        options = {key: options[key] for key in options.keys() - {"target_host", "namespace"}}
        if _WITHOUT_PORT.fullmatch(address):
            address = f"{address}:{PORT}"
        if self.api_key is not None:
            options["api_key"] = self.api_key
            options.setdefault("tls", True)
        if self.tls is not None:
            options["tls"] = self.tls
        return TemporalTarget(address=address, namespace=namespace, options=options)


def read_url(url: str) -> TemporalSettings:
    """Parse a URL. Raises `NotConfigured`, without showing an API key."""
    name = redacted(url)
    if "@" in url.partition("?")[0]:
        raise NotConfigured(
            f"{name}: Temporal has no user and no password; for an API key set TEMPORAL_API_KEY, "
            "or name a profile that has one with ?profile="
        )
    if not url.startswith("temporal://"):
        raise NotConfigured(f"{name}: a Temporal URL looks like temporal://host:7233/namespace")
    parts = urlsplit(url, allow_fragments=False)
    host = parts.netloc
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or (host and not parts.hostname):
        raise NotConfigured(f"{name}: {host!r} is no host:port")
    namespace = unquote(parts.path.removeprefix("/"))
    if "/" in namespace:
        raise NotConfigured(f"{name}: {namespace!r} is no namespace, as it has a / in it")
    try:
        options = read_options(parts.query, _OPTIONS)
    except ValueError as error:
        raise NotConfigured(f"{name}: {error}") from None
    options["task_queue"] = task_queue(options.get("task_queue"))
    address = f"{host}:{PORT}" if host and port is None else host
    return TemporalSettings(shown=name, address=address, namespace=namespace, **options)


_OPTIONS: Mapping[str, Read] = {"api_key": text, "profile": text, "task_queue": text, "tls": flag}
