"""Which store a URL leads to: the same text for all who go there, whoever they are and however they go.

No user, no password and no option of the connection is in it, so it may be written down and shown.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.registry import SPELLINGS, needing_extras

if TYPE_CHECKING:
    from dibs.stores.postgres.url import Target

_SAME = {**SPELLINGS, "rediss": "redis", "valkey": "redis", "valkeys": "redis", "etcds": "etcd"}
"""Schemes that are other ways to the same."""

_FILES = ("sqlite", "memory")
"""Schemes of what is on one machine, and nowhere else."""

_PORTS = {"redis": "6379", "temporal": "7233", "etcd": "2379", "nats": "4222"}

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
    "temporal": re.compile(r"tls.*|api_key"),
    "etcd": re.compile(r"cafile|certfile|keyfile|skew"),
    "kubernetes": re.compile(r"skew"),
    "nats": re.compile(r"tls.*|cafile|certfile|keyfile|skew"),
    "s3": re.compile(r"skew"),
}
"""Options that say how to get there, and not where that is. All others of a store count."""


def address_of(url: str, machine: str = "") -> str:
    """What a URL leads to, on the machine of that name, if it has to be told from others.

    Raises `NotConfigured` for a URL of PostgreSQL that is none, or that says `service=`.
    """
    address = _address(url)
    return f"{address} on {machine}" if machine and is_of_machine(url) else address


def is_of_machine(url: str) -> bool:
    """Whether the same URL leads to another store on another machine."""
    scheme, rest = _parted(url)
    if scheme in _FILES:
        return True
    if scheme == "postgresql":
        target = _target(url, rest)
        return any(map(_is_loopback, target.addresses or target.hosts))
    place = (rest.rpartition("@")[2] if scheme == "redis" else rest).partition("?")[0]
    hosts = place.rpartition("@")[2].partition("/")[0]
    return any(_is_loopback(each) for each in hosts.split(","))


def is_beside(url: str, records: str) -> bool:
    """Whether all who read these records find the same store at a URL.

    Records in a file are read on its machine only, and a store that records lie in is found with them. Of
    others that is not known: records at localhost may be a way to ones that many machines share.
    """
    return _parted(records)[0] in _FILES or address_of(url) == address_of(records)


def _parted(url: str) -> tuple[str, str]:
    """Its scheme, as one way to spell it, and the rest."""
    scheme, _, rest = url.partition("://")
    return _SAME.get(scheme.lower(), scheme.lower()), rest


def _is_loopback(host: str) -> bool:
    """Whether that is a name of whatever machine asks; so are none at all, and a Unix socket."""
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if not name or name.startswith(("/", "@")):
        return True
    try:
        found = ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return found.is_loopback or found.is_unspecified


def _address(url: str) -> str:
    scheme, rest = _parted(url)
    if scheme == "postgresql":
        return _address_of_target(_target(url, rest))
    if scheme == "redis":  # whose passwords may have any characters
        rest = rest.rpartition("@")[2]
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if scheme == "sqlite":
        file = Path(unquote(place.removeprefix("/"))).expanduser().resolve()
        return f"sqlite://{file}{_shown(scheme, options)}"
    hosts, _, path = place.rpartition("@")[2].partition("/")
    path = path.strip("/")
    if scheme == "redis" and (hosts or not path or path.isdigit()):  # else it is a socket's
        hosts, path = hosts or "localhost", path or options.pop("db", "0")
    return f"{scheme}://{_servers(scheme, hosts)}/{path}{_shown(scheme, options)}"


def _servers(scheme: str, hosts: str) -> str:
    port = _PORTS.get(scheme)
    if port is None or not hosts:
        return hosts
    found = (each if re.search(r":\d+$", each) else f"{each}:{port}" for each in hosts.split(","))
    return _sorted(each.lower() for each in found)


def _sorted(servers: Iterable[str]) -> str:
    """Of a cluster's servers it is no matter which one is asked first."""
    return ",".join(sorted(servers))


def _target(url: str, rest: str) -> "Target":
    """Where libpq goes, which its environment has a say in."""
    with needing_extras("postgresql"):
        from dibs.stores.postgres.url import Address
    target = Address(f"postgresql://{rest}").target
    if any(name.startswith("service") for name in target.options):
        raise NotConfigured(
            f"{redacted(url)}: what service= is stands in a file that each machine has for itself, so two "
            "servers could take two stores for one: write host, port and database into the URL"
        )
    return target


def _address_of_target(target: "Target") -> str:
    servers = [_server(host, port) for host, port in zip(target.hosts, target.ports, strict=False)]
    said = {name: value for name, value in target.options.items() if value}
    if not target.addresses:
        servers.sort()
    else:  # each belongs to the server whose name it stands for
        addresses = target.addresses
        if len(addresses) == len(servers):
            pairs = sorted(zip(servers, addresses, strict=True))
            servers, addresses = [server for server, _ in pairs], tuple(at for _, at in pairs)
        said["hostaddr"] = ",".join(addresses)
    at = "" if servers == [":5432"] else ",".join(servers)
    return f"postgresql://{at}/{quote(target.database, safe='')}{_shown('postgresql', said)}"


def _server(host: str, port: str) -> str:
    if host.startswith(("/", "@")):  # a socket's folder, whose case counts
        return f"{quote(host, safe='')}:{port}"
    return f"[{host.lower()}]:{port}" if ":" in host else f"{host.lower()}:{port}"


def _shown(scheme: str, options: Mapping[str, str]) -> str:
    """What counts of its options: that they are the same, not what they say."""
    how = _HOW.get(scheme, _SECRET)
    what = sorted(each for each in options.items() if not how.fullmatch(each[0]))
    return f"?{sha256(repr(what).encode()).hexdigest()[:12]}" if what else ""
