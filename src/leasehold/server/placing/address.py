"""Which store a URL leads to: the same text for all who go there, whoever they are and however they go.

No user, no password and no option of the connection is in it, so it may be written down and shown.
"""

import os
import re
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from leasehold.backends import SPELLINGS

_SAME = {**SPELLINGS, "rediss": "redis", "valkey": "redis", "valkeys": "redis"}
"""Schemes that are other ways to the same."""

_PORTS = {"redis": "6379", "postgresql": "5432", "temporal": "7233"}

_SECRET = re.compile(r".*(password|secret|token|api_key)", re.IGNORECASE)

_HOW = {
    "redis": re.compile(
        r"ssl_.*|socket_.*|sentinel_(username|password)|protocol|restart_holdoff|cluster|max_connections"
        r"|health_check_interval|decode_responses|retry_on_timeout"
    ),
    "postgresql": re.compile(
        r"ssl.*|password|passfile|gss.*|krb.*|keepalives.*|tcp_.*|pooler|migrate|user|connect_timeout|client_encoding"
        r"|(fallback_)?application_name|channel_binding|require_auth|target_session_attrs|load_balance_hosts"
    ),
    "sqlite": re.compile(r"timeout|unsafe_network_fs"),
    "temporal": re.compile(r"tls.*|share|api_key"),
}
"""Options that say how to get there, and not where that is. All others of a store count."""


def address_of(url: str, machine: str = "") -> str:
    """What a URL leads to, on the machine of that name, if it has to be told from others."""
    address = _address(url)
    return f"{address} on {machine}" if machine and is_of_machine(url) else address


def is_of_machine(url: str) -> bool:
    """Whether the same URL leads to another store on another machine."""
    scheme, _, rest = url.partition("://")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if scheme in ("sqlite", "memory"):
        return True
    place, _, query = (rest.rpartition("@")[2] if scheme == "redis" else rest).partition("?")
    hosts = place.rpartition("@")[2].partition("/")[0]
    if not hosts and scheme == "postgresql":
        options = dict(parse_qsl(query))
        hosts = options.get("host") or os.environ.get("PGHOST", "")
    return any(_is_loopback(each) for each in hosts.split(","))


def _is_loopback(host: str) -> bool:
    """Whether that is a name of whatever machine asks; so are none at all, and a Unix socket."""
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if not name or name.startswith(("/", "%2f")):
        return True
    try:
        found = ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return found.is_loopback or found.is_unspecified


def _address(url: str) -> str:
    scheme, _, rest = url.partition("://")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if scheme == "redis":  # whose passwords may have any characters
        rest = rest.rpartition("@")[2]
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if scheme == "sqlite":
        file = Path(unquote(place.removeprefix("/"))).expanduser().resolve()
        return f"sqlite://{file}{_shown(scheme, options)}"
    login, _, place = place.rpartition("@")
    hosts, _, path = place.partition("/")
    path = path.strip("/")
    if scheme == "redis" and (hosts or not path or path.isdigit()):  # else it is a socket's
        hosts, path = hosts or "localhost", path or options.pop("db", "0")
    elif scheme == "postgresql" and not path and "dbname" not in options:
        path = options.get("user") or login.partition(":")[0]  # as libpq has it
    return f"{scheme}://{_servers(scheme, hosts)}/{path}{_shown(scheme, options)}"


def _servers(scheme: str, hosts: str) -> str:
    """Of a cluster's servers it is no matter which one is asked first."""
    port = _PORTS.get(scheme)
    if port is None or not hosts:
        return hosts
    found = (each if re.search(r":\d+$", each) else f"{each}:{port}" for each in hosts.split(","))
    return ",".join(sorted(each.lower() for each in found))


def _shown(scheme: str, options: Mapping[str, str]) -> str:
    """What counts of its options: that they are the same, not what they say."""
    how = _HOW.get(scheme, _SECRET)
    what = sorted(each for each in options.items() if not how.fullmatch(each[0]))
    return f"?{sha256(repr(what).encode()).hexdigest()[:12]}" if what else ""
