"""Settings of an etcd store, and the URL that they are read from; see `EtcdStore` for how one is written."""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dibs.errors import NotConfigured
from dibs.stores.cas.clock import SKEW
from dibs.stores.redact import redacted
from dibs.stores.tls import Tls, tls_context
from dibs.stores.url_options import duration, read_options, text
from dibs.stores.web.endpoint import WebServer

if TYPE_CHECKING:
    import ssl

PORT = 2379

PREFIX = "dibs"
"""What our keys in etcd begin with, unless the URL has a path."""

_OPTIONS = {"cafile": text, "certfile": text, "keyfile": text, "skew": duration}

_FORM = re.compile(
    r"(?P<scheme>etcds?)://(?:(?P<login>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<path>/[^?#]*)?(?:\?(?P<options>[^#]*))?"
)
_HOST = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """All that a connection needs to know."""

    shown: str
    """The store's URL, without the password."""
    members: tuple[WebServer, ...]
    prefix: bytes
    user: str
    password: str = field(repr=False)
    skew: float = SKEW
    """Seconds by which the members' clocks may differ."""


def read_url(url: str) -> EtcdSettings:
    """Read a URL. Raises `NotConfigured` with what is wrong, and never with the password."""
    shown = redacted(url)
    form = _FORM.fullmatch(url)
    if form is None or not form["hosts"]:
        raise NotConfigured(
            f"{shown}: the URL of an etcd looks like etcd://user:password@host:2379, "
            "or etcd://host1:2379,host2:2379,host3:2379 for a cluster"
        )
    try:
        options = read_options(form["options"] or "", _OPTIONS)
        user, colon, password = (form["login"] or "").partition(":")
        if user and not colon:
            raise ValueError("a user without a password; write etcd://user:password@host")
        tls = _tls(shown, form["scheme"] == "etcds", options)
        return EtcdSettings(
            shown=shown,
            members=tuple(_member(text, tls) for text in form["hosts"].split(",")),
            prefix=_prefix(form["path"] or ""),
            user=unquote(user),
            password=unquote(password),
            skew=options.get("skew", SKEW),
        )
    except ValueError as error:
        raise NotConfigured(f"{shown}: {error}") from None


def _member(text: str, tls: Tls | None) -> WebServer:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise ValueError(f"{text!r} is no host:port")
    return WebServer(found["six"] or found["host"], port, tls)


def _prefix(path: str) -> bytes:
    return (unquote(path).strip("/") or PREFIX).encode()


def _tls(shown: str, encrypted: bool, options: dict[str, str]) -> Tls | None:
    files = [name for name in ("cafile", "certfile", "keyfile") if name in options]
    if not encrypted:
        if files:
            raise ValueError(f"{files[0]}= is for TLS: write etcds://")
        return None
    if "keyfile" in options and "certfile" not in options:
        raise ValueError("keyfile= needs certfile=")

    @cache
    def make() -> "ssl.SSLContext":
        context = tls_context(shown, *map(options.get, ("cafile", "certfile", "keyfile")))
        context.set_alpn_protocols(["http/1.1"])
        return context

    return make
