"""Which store a URL leads to, as text to compare: the same for all users and connection options.

It contains no user and no password, so it can be recorded and shown. Two stores never have the same text:
what a URL leaves to the environment, a profile or a kubeconfig is part of it. Two URLs of one store can have
different texts: `was =` in the settings says that they are one.
"""

import re
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.registry import SPELLINGS, needing_extras

_SAME = {**SPELLINGS, "rediss": "redis", "valkey": "redis", "valkeys": "redis", "etcds": "etcd"}
"""Schemes that lead to the same store as another."""

_FILES = ("sqlite", "memory")
"""Schemes of stores that exist on one machine only."""

_HOW = re.compile(r".*(password|secret|token|api_key)|tls.*|(ca|cert|key)file|skew", re.IGNORECASE)
"""Options that say how to connect. All others count as part of the place."""


def store_address(url: str, machine: str = "") -> str:
    """The store of a URL. `machine` names this machine, which counts for files and for loopback.

    Raises `NotConfigured` for a malformed URL, and for one of PostgreSQL with `service=`.
    """
    address, is_here = _address_of(url)
    return f"{address} on {machine}" if machine and is_here else address


def is_found_with(records: str, url: str) -> bool:
    """Whether every server that reads these records finds the same store at a URL.

    Records in a file are read on its machine only, and a store that contains the records is found with them.
    Records at localhost prove nothing: they can be a tunnel to records that many machines share.
    """
    return _parted(records)[0] in _FILES or store_address(url) == store_address(records)


def _parted(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition(":")
    return _SAME.get(scheme.lower(), scheme.lower()), rest.removeprefix("//")


def _address_of(url: str) -> tuple[str, bool]:
    """The store's text, and whether each machine has its own."""
    scheme, rest = _parted(url)
    match scheme:
        case "postgresql":
            return _postgresql(url, rest)
        case "redis":
            return _redis(url)
        case "sqlite":
            path = unquote(rest.partition("?")[0].removeprefix("/"))
            return f"sqlite://{Path(path).expanduser().resolve()}", True
        case "kubernetes":
            return _kubernetes(f"kubernetes://{rest}")
        case "s3":
            return _s3(f"s3://{rest}")
        case "temporal":
            return _temporal(f"temporal://{rest}")
        case _:
            return _other(scheme, rest)


def _redis(url: str) -> tuple[str, bool]:
    with needing_extras("redis"):
        from dibs.stores.redis.url import read_url
    scheme, _, rest = url.partition("://")
    settings = read_url(f"{scheme.lower()}://{rest}")
    if settings.endpoints[0].path:
        servers, is_here = settings.endpoints[0].path, True
    else:
        servers = ",".join(sorted(str(each).lower() for each in settings.endpoints))
        is_here = any(_is_loopback(each.host) for each in settings.endpoints)
    service = f"?sentinel={quote(settings.service, safe='')}" if settings.service else ""
    return f"redis://{servers}/{settings.db}{service}", is_here


def _postgresql(url: str, rest: str) -> tuple[str, bool]:
    """Parsed by libpq itself, with its environment variables for what the URL omits."""
    with needing_extras("postgresql"):
        from dibs.stores.postgres.url import Address
    target = Address(f"postgresql://{rest}").target
    if any(name.startswith("service") for name in target.options):
        raise NotConfigured(
            f"{redacted(url)}: what service= is stands in a file that each machine has for itself, so two "
            "servers could take two stores for one: write host, port and database into the URL"
        )
    pairs = zip(target.hosts, target.ports, strict=False)
    servers, addresses = [_server(*each) for each in pairs], target.addresses
    if len(addresses) == len(servers):  # each belongs to its host
        servers = [f"{each}={at}" for each, at in zip(servers, addresses, strict=True)]
    elif addresses:
        servers.append(f"={','.join(addresses)}")
    at = "" if servers == [":5432"] else ",".join(sorted(servers))
    search = target.options.get("options", "")
    is_here = any(map(_is_loopback, addresses or target.hosts))
    return f"postgresql://{at}/{quote(target.database, safe='')}{_hashed(search)}", is_here


def _server(host: str, port: str) -> str:
    if host.startswith(("/", "@")):  # the directory of a socket, whose case counts
        return f"{quote(host, safe='')}:{port}"
    return f"[{host.lower()}]:{port}" if ":" in host else f"{host.lower()}:{port}"


def _kubernetes(url: str) -> tuple[str, bool]:
    """Many clusters have the same address within, and each has a certificate authority of its own."""
    with needing_extras("kubernetes"):
        from dibs.stores.kubernetes.store import KubernetesStore
    access = KubernetesStore(url).access()
    try:
        authority = "".join(access.trust.authority.decode("ascii", "replace").split())
    except OSError as error:
        raise NotConfigured(f"{redacted(url)}: the cluster's certificate: {error}") from error
    server = f"{access.server.netloc.rpartition('@')[2]}{access.server.path}".rstrip("/").lower()
    is_here = _is_loopback(access.server.hostname or "")
    return f"kubernetes://{server}/{access.namespace}{_hashed(authority)}", is_here


def _s3(url: str) -> tuple[str, bool]:
    """A bucket of AWS is the same from all regions."""
    with needing_extras("s3"):
        from dibs.stores.s3 import S3Store
    endpoint, path = S3Store(url).address()
    return f"s3://{path}{f' at {endpoint}' if endpoint else ''}", _is_loopback(endpoint or "aws")


def _temporal(url: str) -> tuple[str, bool]:
    with needing_extras("temporal"):
        from dibs.stores.temporal.url import read_url
    settings = read_url(url)
    target, queue = settings.target(), settings.task_queue
    address = f"temporal://{target.address.lower()}/{quote(target.namespace, safe='')}"
    return f"{address}?task_queue={quote(queue, safe='')}", _is_loopback(target.address)


def _other(scheme: str, rest: str) -> tuple[str, bool]:
    place, _, query = rest.partition("?")
    hosts, slash, path = place.rpartition("@")[2].partition("/")
    options = parse_qsl(query, keep_blank_values=True)
    counted = sorted(each for each in options if not _HOW.fullmatch(each[0]))
    address = f"{scheme}://{hosts}{slash}{path}".rstrip("/")
    is_here = scheme == "memory" or any(map(_is_loopback, hosts.split(",")))
    return f"{address}{_hashed(repr(counted) if counted else '')}", is_here


def _hashed(text: str) -> str:
    """Short hash, so that options are compared without being shown."""
    return f"?{sha256(text.encode()).hexdigest()[:12]}" if text else ""


def _is_loopback(host: str) -> bool:
    """Whether a host is the machine itself. So are no host at all, and a Unix socket."""
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
