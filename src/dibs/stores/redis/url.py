"""Settings of a Redis store, and the URL that they are read from; see `RedisStore` for how one is written."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from dibs.config import seconds
from dibs.errors import NotConfigured

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


type Tls = Callable[[], ssl.SSLContext]
"""How a connection is encrypted: a function, as reading certificates takes time."""


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
_SECRET = re.compile(r"(?<=://).*@", re.DOTALL)
_SECRET_OPTION = re.compile(r"(?<=password=)[^&]*", re.IGNORECASE)
_ENCRYPTED = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}


def shown(url: str) -> str:
    """The URL as it may be shown: the user's name stays, passwords go, however they are written."""
    scheme, _, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    masked = f"{user}:***" if colon else user
    return _SECRET_OPTION.sub("***", f"{scheme}://{masked}{at}{place}")


def read_url(url: str) -> Settings:
    """Take a URL apart. Raises `NotConfigured`, with what is wrong, and never with a password."""
    try:
        return _read(url)
    except ValueError as error:
        raise NotConfigured(f"{shown(url)}: {error}") from None


def _read(url: str) -> Settings:
    form = _FORM.fullmatch(url)
    if form is None or form["scheme"] not in _ENCRYPTED:
        raise ValueError("a Redis URL looks like redis://user:password@host:6379/0")
    options = _options(form["options"] or "")
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
    user, _, password = (form["login"] or "").partition(":")
    sentinel_login = options.get("sentinel_username", ""), options.get("sentinel_password", "")
    if any(sentinel_login) and not sentinel:
        raise ValueError("sentinel_password= is given, and no sentinel=SERVICE")
    return Settings(
        shown=shown(url),
        endpoints=endpoints,
        topology="cluster" if cluster else "sentinel" if sentinel else "server",
        service=sentinel,
        login=(unquote(user), unquote(password)),
        sentinel_login=sentinel_login,
        db=db,
        tls=_tls(form["scheme"], options),
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


def _options(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in _IGNORED:
            continue
        read = _OPTIONS.get(name)
        if read is None:
            known = ", ".join(sorted(_OPTIONS))
            raise ValueError(f"there is no option {name}=; known are {known}")
        if name in found:
            raise ValueError(f"{name}= is given twice")
        try:
            found[name] = read(value)
        except ValueError as error:
            raise ValueError(f"{name}= {error}") from None
    return found


def _flag(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError("is true or false")
    return known[text.lower()]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("is a number")
    return int(text)


def _certificate(text: str) -> bool:
    if text not in ("required", "none"):
        raise ValueError("is required or none")
    return text == "required"


def _text(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _duration(text: str) -> float:
    try:
        found = seconds(text)
    except ValueError:
        found = -1.0
    if not 0 < found < 86400:
        raise ValueError("is a duration such as 60s, of less than a day")
    return found


_IGNORED = frozenset(
    ["max_connections", "health_check_interval", "decode_responses", "retry_on_timeout", "protocol"]
)
"""What redis-py's URLs say of its own connections. Ours have no pool, and both protocols serve them alike."""

_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "cluster": _flag,
    "sentinel": _text,
    "sentinel_username": _text,
    "sentinel_password": _text,
    "db": _number,
    "restart_holdoff": _duration,
    "socket_connect_timeout": _duration,
    "socket_timeout": _duration,
    "ssl_ca_certs": _text,
    "ssl_certfile": _text,
    "ssl_keyfile": _text,
    "ssl_cert_reqs": _certificate,
    "ssl_check_hostname": _flag,
}


def _tls(scheme: str, options: Mapping[str, Any]) -> Tls | None:
    """Return a function that makes the TLS context when it is first needed.

    Without a CA, those that the system trusts are trusted. The function raises `NotConfigured` for files
    that can't be used.
    """
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

        try:
            context = ssl.create_default_context(cafile=ca)
            if cert is not None:
                context.load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            files = ", ".join(name for name in (ca, cert, key) if name)
            raise NotConfigured(f"TLS can't be set up with {files}: {error}") from error
        verify = options.get("ssl_cert_reqs", True)
        if not (verify and options.get("ssl_check_hostname", True)):
            context.check_hostname = False
        if not verify:
            context.verify_mode = ssl.CERT_NONE
        return context

    return make
