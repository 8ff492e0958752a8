"""Temporal URLs, over a profile of Temporal's own settings. See `TemporalStore` for the form."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.temporal.ids import task_queue
from dibs.stores.url_options import Read, flag, read_options, text

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.envconfig import ClientConfigProfile

PORT = 7233
ADDRESS = f"localhost:{PORT}"
NAMESPACE = "default"

_FORM = re.compile(r"temporal://(?P<host>[^/?@]*)(?:/(?P<namespace>[^?]*))?(?:\?(?P<options>.*))?",
                   re.DOTALL)  # fmt: skip
_HOST = re.compile(r"(?P<name>\[[^\]]+\]|[^:\[\]]*)(?::(?P<port>\d+))?")
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
    def of(cls, client: "Client") -> "TemporalTarget":
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
    api_key: Callable[[], str] | None = field(default=None, repr=False)
    """A function, so that no repr shows it."""
    tls: bool | None = None
    given: TemporalTarget | None = None
    """The target of the user's own client, instead of all that."""

    def target(self) -> TemporalTarget:
        """Look the profile up. Raises `NotConfigured` if it is missing or cannot be read."""
        if self.given is not None:
            return self.given
        options: dict[str, Any] = dict(self._profile().to_client_connect_config())
        address = self.address or options.get("target_host") or ADDRESS
        namespace = self.namespace or options.get("namespace") or NAMESPACE
        options = {key: options[key] for key in options.keys() - {"target_host", "namespace"}}
        if _WITHOUT_PORT.fullmatch(address):
            address = f"{address}:{PORT}"
        if self.api_key is not None:
            options["api_key"] = self.api_key()
            options.setdefault("tls", True)
        if self.tls is not None:
            options["tls"] = self.tls
        return TemporalTarget(address=address, namespace=namespace, options=options)

    def _profile(self) -> "ClientConfigProfile":
        """The profile, overridden by the environment.

        Where the URL names a host and no profile, nothing is read from the file: an API key in it is for
        another host.
        """
        from temporalio.envconfig import ClientConfigProfile

        named = self.profile or os.environ.get("TEMPORAL_PROFILE")
        try:
            return ClientConfigProfile.load(
                self.profile, disable_file=bool(self.address) and not named
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise NotConfigured(
                f"{self.shown}: Temporal's settings can't be read ({error}); "
                "`temporal config list` shows the profiles there are"
            ) from error


def read_url(url: str) -> TemporalSettings:
    """Parse a URL. Raises `NotConfigured`, without showing an API key."""
    name = redacted(url)
    if "@" in url.partition("?")[0]:
        raise NotConfigured(
            f"{name}: Temporal has no user and no password; for an API key set TEMPORAL_API_KEY, "
            "or name a profile that has one with ?profile="
        )
    form = _FORM.fullmatch(url)
    if form is None:
        raise NotConfigured(f"{name}: a Temporal URL looks like temporal://host:7233/namespace")
    try:
        options = read_options(form["options"] or "", _OPTIONS)
    except ValueError as error:
        raise NotConfigured(f"{name}: {error}") from None
    namespace = unquote(form["namespace"] or "")
    if "/" in namespace:
        raise NotConfigured(f"{name}: {namespace!r} is no namespace, as it has a / in it")
    api_key = options.pop("api_key", None)
    options["task_queue"] = task_queue(options.get("task_queue"))
    return TemporalSettings(
        shown=name,
        address=_address(form["host"], name),
        namespace=namespace,
        api_key=None if api_key is None else lambda: api_key,
        **options,
    )


def _address(text: str, name: str) -> str:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 65536 or (found["port"] and not found["name"]):
        raise NotConfigured(f"{name}: {text!r} is no host:port")
    return f"{unquote(found['name'])}:{port}" if text else ""


_OPTIONS: Mapping[str, Read] = {"api_key": text, "profile": text, "task_queue": text, "tls": flag}
