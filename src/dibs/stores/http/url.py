"""Address of the service and access to it: its URL (see `HttpStore`), its settings and its API key."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.tls import Tls, tls_context
from dibs.stores.url_options import Read, flag, read_options, text
from dibs.stores.web.endpoint import CONNECT_TIMEOUT, host_and_port, is_here

if TYPE_CHECKING:
    import ssl

TIMEOUT = 10.0
"""Seconds that an answer may take at most. Calls for leases with a short ttl wait less."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, and where it was found, for error messages."""

    secret: str = field(repr=False)
    place: str


type FindKey = Callable[[], ApiKey | None]
"""Called for each connection, so that a new key in a file is used soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Settings of a connection."""

    shown: str
    """The store's URL, without any key."""
    host: str
    port: int
    base: str
    """The path in front of `/v1`, without a slash at its end."""
    find_key: FindKey = field(repr=False)
    tls: Tls | None = None
    connect_timeout: float = CONNECT_TIMEOUT
    timeout: float = TIMEOUT

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        whole = host_and_port(self.host, self.port)
        return whole.removesuffix(":80" if self.tls is None else ":443")


VARIABLE = "DIBS_API_KEY"
FILE_VARIABLE = "DIBS_API_KEY_FILE"

HOW = f"set {VARIABLE}, or {FILE_VARIABLE} to a file that has it"


def key_finder(in_url: str, file: str | None) -> FindKey:
    """Return a function that finds the API key: in the URL, in its `key_file`, or by an environment variable.

    The function raises `NotConfigured` if a file cannot be read, or if what it finds cannot be a key.
    """

    def find() -> ApiKey | None:
        if in_url:
            return _checked(in_url, "the URL")
        if file is not None:
            return _read(file, "key_file")
        if secret := os.environ.get(VARIABLE, "").strip():
            return _checked(secret, VARIABLE)
        if path := os.environ.get(FILE_VARIABLE):
            return _read(path, FILE_VARIABLE)
        return None

    return find


def _read(path: str, said_by: str) -> ApiKey:
    try:
        text = Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise NotConfigured(f"the API key's file {path} ({said_by}) can't be read: {why}") from None
    if not text:
        raise NotConfigured(f"the API key's file {path} ({said_by}) is empty")
    return _checked(text, f"the file {path}")


def _checked(secret: str, place: str) -> ApiKey:
    """A key is one word, as it travels in a header. It is never shown, as half a key is a secret too."""
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise NotConfigured(f"what {place} has is no API key: a key is one word, such as dibs_…")
    return ApiKey(secret, place)


PORTS = {"http": 80, "https": 443}
OPTIONS: Mapping[str, Read] = {"cafile": text, "insecure": flag, "key_file": text}


def read_url(url: str) -> HttpSettings:
    """Read a URL. Raises `NotConfigured` with what is wrong, and never with the API key."""
    shown = redacted(url)
    try:
        return _settings(url, shown)
    except ValueError as error:
        raise NotConfigured(f"{shown}: {error}") from None


def _settings(url: str, shown: str) -> HttpSettings:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"it can't be read ({error})") from None
    if parts.scheme not in PORTS or not parts.hostname or parts.fragment:
        raise ValueError("the lock service's URL looks like https://server:8443")
    if re.search(r"[\s\x00-\x1f]", url):
        raise ValueError("there is a blank or a control character in it")
    options = read_options(parts.query, OPTIONS)
    _check_encryption(parts.scheme, parts.hostname, options)
    key = unquote(parts.password or parts.username or "")
    if key and "key_file" in options:
        raise ValueError("the API key is given twice, before the @ and by key_file=")
    return HttpSettings(
        shown=shown,
        host=parts.hostname,
        port=PORTS[parts.scheme] if port is None else port,
        base=_base(parts.path),
        find_key=key_finder(key, options.get("key_file")),
        tls=_tls(shown, options.get("cafile")) if parts.scheme == "https" else None,
    )


def _base(path: str) -> str:
    path = path.rstrip("/")
    if path.endswith("/v1"):
        raise ValueError("leave out /v1: it is added")
    if not path.isascii():
        raise ValueError("write other letters than ASCII in the path as %XX")
    return path


def _check_encryption(scheme: str, host: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the API key would cross a network unencrypted."""
    insecure = options.get("insecure", False)
    if scheme == "https":
        if insecure:
            advice = "for a certificate of your own give cafile=FILE, which may be itself"
            raise ValueError(f"insecure=true is for http://; {advice}")
        return
    if not (insecure or is_here(host)):
        raise ValueError(
            "http:// sends the API key and lease ids in clear: write https://, or, where "
            "the network itself is encrypted, add ?insecure=true"
        )
    if "cafile" in options:
        raise ValueError("cafile= is for https://")


def _tls(shown: str, cafile: str | None) -> Tls:
    @cache
    def make() -> "ssl.SSLContext":
        context = tls_context(shown, cafile)
        context.set_alpn_protocols(["http/1.1"])
        return context

    return make
