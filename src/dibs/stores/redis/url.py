"""Settings of a Redis store, and the URL that they are read from; see `RedisStore` for how one is written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.tls import Tls, tls_context
from dibs.stores.url_options import (
    Read,
    duration,
    flag,
    number,
    one_of,
    read_options,
    text,
    timeout,
)

if TYPE_CHECKING:
    import ssl

PORT = 6379
SENTINEL_PORT = 26379

CONNECT_TIMEOUT = 5.0
"""How long connecting and logging in may take, in seconds."""

TIMEOUT = 10.0
"""How long an answer may take at most, in seconds; a call whose leases are short waits less."""

type Login = tuple[str, str]
"""A user's name and password; empty for none."""


class Endpoint(NamedTuple):
    """A server's address: a host and a port, or the path of a socket on this machine."""

    host: str
    port: int = PORT
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that a connection needs to know."""

    shown: str
    """The store's URL, without any password."""
    endpoints: tuple[Endpoint, ...]
    """The server; or some nodes of the Cluster; or the Sentinels."""
    topology: Literal["server", "sentinel", "cluster"] = "server"
    service: str = ""
    """What the Sentinels call the master."""
    login: Login = field(default=("", ""), repr=False)
    sentinel_login: Login = field(default=("", ""), repr=False)
    db: int = 0
    tls: Tls | None = None
    holdoff: float = 0.0
    """How long nothing is granted after the server came back empty, in seconds."""
    connect_timeout: float = CONNECT_TIMEOUT
    timeout: float = TIMEOUT


# ---- reading a URL --------------------------------------------------------------------------------

_FORM = re.compile(r"(?P<scheme>[a-z]+)://(?:(?P<login>.*)@)?(?P<hosts>[^/?@]*)(?P<path>[^?]*)"
                   r"(?:\?(?P<options>.*))?", re.DOTALL)  # fmt: skip
_ENCRYPTED = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}


def read_url(url: str) -> Settings:
    """Take a URL apart. Raises `NotConfigured`, with what is wrong, and never with a password."""
    try:
        return _read(url)
    except ValueError as error:
        raise NotConfigured(f"{redacted(url)}: {error}") from None


def _read(url: str) -> Settings:
    form = _FORM.fullmatch(url)
    if form is None or form["scheme"] not in _ENCRYPTED:
        raise ValueError("a Redis URL looks like redis://user:password@host:6379/0")
    options = read_options(form["options"] or "", _OPTIONS, _REDIS_PY)
    cluster, sentinel = bool(options.get("cluster")), options.get("sentinel", "")
    endpoints = _endpoints(form, SENTINEL_PORT if sentinel else PORT)
    db, holdoff = _db(form, options), options.get("restart_holdoff", 0.0)
    if cluster and sentinel:
        raise ValueError("cluster= and sentinel= exclude each other")
    if cluster and db:
        raise ValueError(f"a Cluster has no database {db}, only 0")
    if cluster and holdoff:
        raise ValueError("restart_holdoff= can't be kept on a Cluster, only on one server")
    if (cluster or sentinel) and endpoints[0].path:
        raise ValueError("a socket's path names one server: leave out cluster= and sentinel=")
    if len(endpoints) > 1 and not (cluster or sentinel):
        raise ValueError("several hosts need cluster=true, or sentinel=SERVICE (the master's name)")
    shown = redacted(url)
    user, _, password = (form["login"] or "").partition(":")
    sentinel_login = options.get("sentinel_username", ""), options.get("sentinel_password", "")
    if any(sentinel_login) and not sentinel:
        raise ValueError("sentinel_password= is given, and no sentinel=SERVICE")
    return Settings(
        shown=shown,
        endpoints=endpoints,
        topology="cluster" if cluster else "sentinel" if sentinel else "server",
        service=sentinel,
        login=(unquote(user), unquote(password)),
        sentinel_login=sentinel_login,
        db=db,
        tls=_tls(shown, form["scheme"], options),
        holdoff=holdoff,
        connect_timeout=options.get("socket_connect_timeout", CONNECT_TIMEOUT),
        timeout=options.get("socket_timeout", TIMEOUT),
    )


def _endpoints(form: re.Match[str], port: int) -> tuple[Endpoint, ...]:
    hosts, path = form["hosts"], unquote(form["path"])
    if not hosts and path.strip("/") and not path.strip("/").isdigit():
        if _ENCRYPTED[form["scheme"]]:
            raise ValueError("a socket on this machine is not encrypted: use redis://")
        return (Endpoint("", 0, path),)
    return tuple(_endpoint(host, port) for host in hosts.split(","))


def _endpoint(text: str, port: int) -> Endpoint:
    found = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d+))?", text)
    number = int(found["port"] or port) if found else 0
    if found is None or not 0 < number < 65536:
        raise ValueError(f"{text!r} is no host:port")
    return Endpoint(unquote(found["six"] or found["host"] or "localhost"), number)


def _db(form: re.Match[str], options: Mapping[str, Any]) -> int:
    path = unquote(form["path"]).strip("/")
    by_path = path.isdigit()
    if path and not by_path and form["hosts"]:
        raise ValueError(f"{path!r} is no number of a database")
    if by_path and "db" in options:
        raise ValueError("the database is given twice, as a path and as db=")
    return int(path) if by_path else options.get("db", 0)


# ---- options --------------------------------------------------------------------------------------

_REDIS_PY = frozenset(
    ["max_connections", "health_check_interval", "decode_responses", "retry_on_timeout", "protocol"]
)
"""Options of redis-py's URLs for its own connections, which Dibs ignores."""

_OPTIONS: Mapping[str, Read] = {
    "cluster": flag,
    "db": number,
    "restart_holdoff": duration,
    "sentinel": text,
    "sentinel_password": text,
    "sentinel_username": text,
    "socket_connect_timeout": timeout,
    "socket_timeout": timeout,
    "ssl_ca_certs": text,
    "ssl_cert_reqs": one_of("required", "none"),
    "ssl_certfile": text,
    "ssl_check_hostname": flag,
    "ssl_keyfile": text,
}


def _tls(shown: str, scheme: str, options: Mapping[str, Any]) -> Tls | None:
    given = [name for name in options if name.startswith("ssl_")]
    if not _ENCRYPTED[scheme]:
        if given:
            raise ValueError(f"{min(given)}= needs an encrypted connection: write {scheme}s://")
        return None
    ca, cert, key = (options.get(f"ssl_{name}") for name in ("ca_certs", "certfile", "keyfile"))
    if key and not cert:
        raise ValueError("ssl_keyfile= needs ssl_certfile=, the certificate that it belongs to")

    @cache
    def make() -> "ssl.SSLContext":
        import ssl

        context = tls_context(shown, ca, cert, key)
        verify = options.get("ssl_cert_reqs") != "none"
        if not (verify and options.get("ssl_check_hostname", True)):
            context.check_hostname = False
        if not verify:
            context.verify_mode = ssl.CERT_NONE
        return context

    return make
