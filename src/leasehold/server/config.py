"""The service's settings: of the command line, else of the environment, else of a TOML file."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from leasehold.config import seconds
from leasehold.errors import NotConfigured
from leasehold.hub import implicit_url
from leasehold.server.limits import Limits
from leasehold.server.logs import Format
from leasehold.server.placing.table import FRESH

VARIABLE = "LEASEHOLD_SERVER_"
"""What the names of variables begin with: LEASEHOLD_SERVER_STORE, LEASEHOLD_SERVER_LIMITS__MAX_TTL, …"""

PORT = 5327

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Placement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A store, and where it is: `[[placement]]` in the file."""

    name: str
    url: str
    provider: str = ""
    region: str = ""


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module. Times are in seconds, or texts such as "30s"."""

    listen: str = f"127.0.0.1:{PORT}"
    store: str = ""
    """The URL of the store, where there is one; else there are placements."""
    records: str = ""
    """Where keys, restrictions and the audit are kept; empty: with the first store."""
    tls_cert: str = ""
    tls_key: str = ""
    allow_plain_http: bool = False
    """Serve other hosts without TLS: whoever is on the way reads their keys."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses, or networks, whose `X-Forwarded-For` is believed; `*` for all."""
    drain_delay: float = 0.0
    """How long `/readyz` fails before no connection is accepted any more, for load balancers."""
    drain_time: float = 20.0
    """How long requests have to come to their end."""
    log_format: Format = ""
    """`text` or `json`: also one line a request; empty: only what goes wrong, as text."""
    metrics: bool = True
    """Show `/metrics` to whoever asks: counts and times, no names."""
    limits: Limits = Limits()
    placement: tuple[Placement, ...] = ()
    placement_fresh: float = FRESH
    """So long after it has read where directories live a server grants anything; the same at all servers."""

    @property
    def stores(self) -> tuple[Placement, ...]:
        """All placements: one at least."""
        if self.placement:
            return self.placement
        return (Placement(name="default", url=self.store or implicit_url()),)

    @property
    def records_url(self) -> str:
        """Where the records are."""
        return self.records or self.stores[0].url

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise NotConfigured(
                f"listen is {self.listen!r}: write HOST:PORT, such as 127.0.0.1:{PORT} or [::1]:{PORT}"
            )
        return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        host = self.address[0]
        return host in LOOPBACK or host.startswith("127.")


def read_config(
    file: str | None, given: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> ServerConfig:
    """The settings. Raises `NotConfigured`, which says where the fault stands."""
    path = file or environ.get(f"{VARIABLE}CONFIG")
    found = _from_file(path) if path else {}
    where = path or "the settings"
    for name, value in _from_environment(environ).items():
        if name == "limits":
            found["limits"] = {**found.get("limits", {}), **value}
        else:
            found[name] = value
    found |= {name: value for name, value in given.items() if value is not None}
    if found.get("store") and found.get("placement"):
        raise NotConfigured("store= and [[placement]]: choose one, as a placement is a store")
    try:
        config = msgspec.convert(_read_texts(found), ServerConfig, strict=False)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise NotConfigured(f"{where}: {error}") from None
    _check(config)
    return config


def _check(config: ServerConfig) -> None:
    """Raises `NotConfigured` for what does not go together."""
    if bool(config.tls_cert) != bool(config.tls_key):
        raise NotConfigured("tls_cert and tls_key: one does not go without the other")
    if not config.is_loopback and not config.tls_cert and not config.allow_plain_http:
        raise NotConfigured(
            f"{config.listen} can be reached from other machines, and without TLS whoever is on the way "
            "reads their keys: give --tls-cert and --tls-key, or listen on 127.0.0.1; if something in "
            "front does TLS, say --allow-plain-http"
        )
    names = [each.name for each in config.stores]
    if len(set(names)) != len(names):
        raise NotConfigured(f"two placements have one name: {', '.join(sorted(names))}")
    for each in config.stores:
        if each.url.startswith(("http:", "https:")):
            raise NotConfigured(f"{each.name}: a service does not stand on another one: {each.url}")
    limits = config.limits
    if not 0 < limits.min_ttl <= limits.max_ttl:
        raise NotConfigured("limits: min_ttl must be more than 0, and at most max_ttl")


def _from_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).expanduser().read_text("utf-8"))
    except OSError as error:
        raise NotConfigured(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise NotConfigured(f"{path} is no TOML: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """What variables say; a double underscore leads into a table."""
    found: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith(VARIABLE) or variable == f"{VARIABLE}CONFIG":
            continue
        name = variable.removeprefix(VARIABLE).lower()
        table, double, field = name.partition("__")
        if double:
            found.setdefault(table, {})[field] = value
        else:
            found[name] = value
    return found


def _read_texts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Durations that are texts, as numbers, and lists that are texts, as such."""
    result = dict(found)
    for owner, kind in ((result, ServerConfig), (result.get("limits"), Limits)):
        if not isinstance(owner, dict):
            continue
        for field in msgspec.structs.fields(kind):
            value = owner.get(field.name)
            if field.type is float and isinstance(value, str):
                owner[field.name] = seconds(value, field.name)
            elif field.type == tuple[str, ...] and isinstance(value, str):
                owner[field.name] = [each.strip() for each in value.split(",") if each.strip()]
    return result
