"""The service's settings: from the command line, else the environment, else a TOML file."""

import os
import re
import socket
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dibs.config import seconds
from dibs.errors import DibsError, NotConfigured
from dibs.server.api.parameters import describe_type, place_in
from dibs.server.audit import KEEP, MOST
from dibs.server.auth.credentials import ServiceSecret
from dibs.server.limits import FIXED, TIMES, Limits
from dibs.server.logs import Format
from dibs.server.placement.rules import PlacementSettings
from dibs.server.records.sqlite import sqlite_path
from dibs.session import implicit_url
from dibs.settings import closest, is_link
from dibs.stores.redact import redacted

VARIABLE = "DIBS_SERVER_"
"""What the names of variables begin with: DIBS_SERVER_LEASES, DIBS_SERVER_LIMITS__MAX_TTL, …"""

PORT = 5327

_PROCESS = token_hex(16)
"""For servers in one process, with records in its memory."""

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one server. Times are in seconds, or texts such as "30s"."""

    listen: str = f"127.0.0.1:{PORT}"
    leases: str = ""
    """The URL of the only store of leases. With several stores, use placements."""
    records: str = ""
    """The URL of the keys, restrictions and audit log; empty: that of the first store."""
    tls_cert: str = ""
    tls_key: str = ""
    allow_plain_http: bool = False
    """Serve other hosts without TLS: API keys can be read on the network."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses, or networks, whose `X-Forwarded-For` is believed; `*` for all."""
    sign_in: bool = False
    """Print a link at each start that signs an administrator's browser in once."""
    origins: tuple[str, ...] = ()
    """Addresses of the dashboard, such as `https://locks.example`, if a proxy changes Host."""
    drain_delay: float = 0.0
    """How long `/readyz` fails before connections are refused, so that load balancers notice."""
    drain_time: float = 20.0
    """How long requests under way have to end."""
    log_format: Format = ""
    """`text` or `json`: also one line a request; empty: only what goes wrong, as text."""
    metrics: bool = True
    """Serve `/metrics` without authentication: counts and times, no names."""
    metrics_directories: tuple[str, ...] = ()
    """Directories whose commands are counted separately, such as `jobs/`: one label each."""
    secret: tuple[str, ...] = ()
    """Secrets for tokens and sessions, the same on all servers: the first signs, all are accepted."""
    secret_file: str = ""
    """A file with the secret. It is created if it is missing."""
    audit_keep: float = KEEP
    """Seconds that a line of the audit is kept."""
    audit_lines: int = MOST
    """Lines of the audit that are kept."""
    limits: Limits = Limits()
    placement: tuple[PlacementSettings, ...] = ()
    placement_fresh: float = 3.0
    """Seconds for which a server with several placements relies on one reading of the routing table."""

    @property
    def stores(self) -> tuple[PlacementSettings, ...]:
        """All placements: one at least."""
        if self.placement:
            return self.placement
        return (PlacementSettings(name="default", url=self.leases or implicit_url()),)

    @property
    def records_url(self) -> str:
        """The URL of the records."""
        return self.records or self.stores[0].url

    @property
    def secret_path(self) -> Path | None:
        """The file with the secret: by default beside a SQLite file with the records."""
        if self.secret_file:
            return Path(self.secret_file).expanduser()
        if not self.records_url.startswith("sqlite:"):
            return None
        return Path(f"{sqlite_path(self.records_url)}.secret")

    def secrets(self) -> ServiceSecret:
        """The secrets that sign tokens and sessions. Raises `NotConfigured`."""
        if not self.secret and self.records_url.startswith("memory:"):
            return ServiceSecret((f"{_PROCESS}{self.records_url}",))
        return ServiceSecret(self.secret, self.secret_path)

    @property
    def named_urls(self) -> tuple[str, ...]:
        """URLs named in the settings, without defaults."""
        return tuple(filter(None, (self.leases, self.records, *(at.url for at in self.placement))))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or not port.isascii():
            raise NotConfigured(
                f"listen is {self.listen!r}: write HOST:PORT, such as 127.0.0.1:{PORT} or [::1]:{PORT}"
            )
        if int(port) > 65535:
            raise NotConfigured(f"listen is {self.listen!r}: a port is 0 to 65535")
        return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        host = self.address[0]
        return host in LOOPBACK or host.startswith("127.")


def read_config(
    file: str | None,
    given: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    *,
    default_store: str = "",
) -> ServerConfig:
    """Read the settings. `default_store` is used if they name no store.

    Raises `NotConfigured`, which names the file or variable; `CannotListen`.
    """
    path = file or environ.get(f"{VARIABLE}CONFIG")
    found = _from_file(path) if path else {}
    for name, value in _from_environment(environ).items():
        table = found.get(name)
        found[name] = {**table, **value} if isinstance(table, dict) else value
    found |= {name: value for name, value in given.items() if value is not None}
    if found.get("leases") and found.get("placement"):
        raise NotConfigured("leases= and [[placement]]: choose one, as a placement is a store")
    if default_store and not found.get("leases") and not found.get("placement"):
        found["leases"] = default_store
    try:
        config = msgspec.convert(_read_texts(found), ServerConfig, strict=False)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise NotConfigured(_explained(str(error), path or "the settings", environ)) from None
    _check(config)
    return config


def _explained(error: str, file: str, environ: Mapping[str, str]) -> str:
    """Where a wrong setting is, and what it should be."""
    place = place_in(error)
    name = place or error.partition(" ")[0]
    variable = VARIABLE + name.upper().replace(".", "__")
    where = variable if variable in environ else f"{file}: {place}" if place else file
    words = describe_type(ServerConfig, place)
    return f"{where}: give {words}" if words else f"{where}: {error}"


def _check(config: ServerConfig) -> None:
    """Raises `NotConfigured` for what does not go together."""
    if bool(config.tls_cert) != bool(config.tls_key):
        raise NotConfigured("set both tls_cert and tls_key")
    if not config.is_loopback and not config.tls_cert and not config.allow_plain_http:
        look_up(config.listen, *config.address)  # raises if there is no such host
        raise NotConfigured(
            f"{config.listen} can be reached from other machines, and without TLS, API keys can be read "
            "on the network: give --tls-cert and --tls-key, or listen on 127.0.0.1; if a proxy in front "
            "does TLS, give --allow-plain-http"
        )
    names = [each.name for each in config.stores]
    if len(set(names)) != len(names):
        raise NotConfigured(f"two placements have one name: {', '.join(sorted(names))}")
    if len(config.stores) > 1 and not config.records:
        raise NotConfigured(
            "with several placements say where the records are, at each server the same, as they would "
            f"follow the first placement; records = {redacted(config.records_url)!r} is where they "
            "were until now, if that was the only one"
        )
    for each in config.stores:
        if each.url.startswith(("http:", "https:")):
            raise NotConfigured(
                f"a Dibs server cannot use another as its store: {redacted(each.url)}"
            )
    for origin in config.origins:
        if not re.fullmatch(r"https?://[^/?#@\s]+/?", origin, re.IGNORECASE):
            raise NotConfigured(f"origins: {origin!r}: write https://HOST, or https://HOST:PORT")
    if not 0.1 <= config.placement_fresh <= 60:
        raise NotConfigured(
            f"placement_fresh is {config.placement_fresh:g}: it must be 0.1 to 60 seconds, as each step of a "
            "move takes that long"
        )
    if not config.audit_keep > 0 or config.audit_lines < 1:
        raise NotConfigured("audit_keep and audit_lines must be more than 0")
    limits = config.limits
    if not 0 < limits.min_ttl <= limits.max_ttl:
        raise NotConfigured("limits: min_ttl must be more than 0, and at most max_ttl")
    for name in TIMES:
        if not getattr(limits, name) > 0:
            raise NotConfigured(f"limits: {name} must be more than 0 seconds")
    for name in FIXED:
        if getattr(limits, name) != getattr(Limits(), name):
            raise NotConfigured(f"limits: {name} is part of the protocol, so it cannot be changed")


def _from_file(path: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(Path(path).expanduser().read_text("utf-8"))
    except OSError as error:
        raise NotConfigured(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise NotConfigured(f"{path} is no TOML: {error}") from error
    _refuse_unknown(f"{path}:", found, _names(ServerConfig))
    for name, kind in (("limits", Limits), ("placement", PlacementSettings)):
        tables = found.get(name, ())
        for table in tables if isinstance(tables, list) else (tables,):
            if isinstance(table, dict):  # msgspec reports other types later
                _refuse_unknown(f"{path}: [{name}]", table, _names(kind))
    return found


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings from variables. A double underscore names a table: LIMITS__MAX_TTL."""
    names = {name.upper(): (name, "") for name in _names(ServerConfig) - {"limits", "placement"}}
    names |= {f"LIMITS__{name.upper()}": ("limits", name) for name in _names(Limits)}
    known = names.keys() | {"CONFIG"}
    for variable, text in environ.items():
        key = variable.removeprefix(VARIABLE)
        if key == variable or key in known or is_link(key, text):
            continue
        close = _closest(key.lower(), {each.lower() for each in known})
        meant = f". Did you mean {VARIABLE}{close.upper()}?" if close else ""
        raise NotConfigured(f"unknown setting {variable}{meant}")
    found: dict[str, Any] = {}
    for variable, (name, field) in names.items():
        value = environ.get(VARIABLE + variable)
        if value is not None and field:
            found.setdefault(name, {})[field] = value
        elif value is not None:
            found[name] = value
    return found


_SYNONYMS = {
    **dict.fromkeys(("address", "bind", "host", "port"), "listen"),
    **dict.fromkeys(("backend", "database", "redis", "store", "url"), "leases"),
    **dict.fromkeys(("cert", "certificate"), "tls_cert"),
    **dict.fromkeys(("grace", "timeout"), "drain_time"),
    "proxies": "trusted_proxies",
}
"""What other programs call our settings."""


def _closest(key: str, known: Collection[str]) -> str:
    meant = _SYNONYMS.get(key, "")
    return meant if meant in known else closest(key, known)


def _refuse_unknown(where: str, found: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `NotConfigured` for an unknown key; never with its value, which can be a password."""
    for key in found:
        if key not in known:
            close = _closest(key, known)
            meant = f". Did you mean {close}?" if close else ""
            raise NotConfigured(f"{where} unknown setting {key}{meant}")


def _names(kind: type[Struct]) -> set[str]:
    """The settings that a table can have."""
    return {field.name for field in msgspec.structs.fields(kind)}


def _read_texts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Convert texts to durations in seconds, and to lists."""
    result = dict(found)
    for table, kind in (("", ServerConfig), ("limits.", Limits)):
        owner = result.get("limits") if table else result
        if not isinstance(owner, dict):
            continue
        for field in msgspec.structs.fields(kind):
            value = owner.get(field.name)
            if field.type is float and isinstance(value, str):
                owner[field.name] = seconds(value, table + field.name)
            elif field.type == tuple[str, ...] and isinstance(value, str):
                owner[field.name] = [each.strip() for each in value.split(",") if each.strip()]
    return result


class CannotListen(DibsError):
    """The address is in use, or does not exist yet. It can be available later."""


class SocketAddress(NamedTuple):
    """Family, type, protocol and address for `socket.socket`."""

    family: int
    kind: int
    protocol: int
    address: Any


def look_up(listen: str, host: str, port: int) -> SocketAddress:
    """Resolve `listen`, split into host and port. Raises `CannotListen`; `NotConfigured` for no host name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(f"{listen} is no address here: {error.strerror}") from error
    except UnicodeError as error:
        raise NotConfigured(f"{listen} is no address: {error}") from error
    family, kind, protocol, _, address = found[0]
    return SocketAddress(family, kind, protocol, address)
