"""Address of the service and access to it: its URL (see `HttpStore`), its settings and its API key."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from dibs.errors import NotConfigured
from dibs.stores.web.endpoint import is_here

if TYPE_CHECKING:
    import ssl

CONNECT_TIMEOUT = 5.0
"""Seconds that connecting may take, with TLS."""

TIMEOUT = 10.0
"""Seconds that an answer may take at most. Calls for leases with a short ttl wait less."""

LARGEST = 1 << 19
"""Bytes of a request above which its commands are sent in two. Services and proxies limit the body."""


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
    base: str = ""
    """The path in front of `/v1`, without a slash at its end."""
    find_key: FindKey = field(default=lambda: None, repr=False)
    tls: "Callable[[], ssl.SSLContext] | None" = None
    """Makes the context for TLS; None without TLS. A function, as reading certificates takes time."""
    connect_timeout: float = CONNECT_TIMEOUT
    timeout: float = TIMEOUT

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (80 if self.tls is None else 443) else f"{host}:{self.port}"


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
OPTIONS = ("cafile", "insecure", "key_file")
_USER = re.compile(r"(?<=://)[^/?#]*@")
_FLAGS = {"1": True, "true": True, "0": False, "false": False}


def shown(url: str) -> str:
    """Return the URL without the API key before its `@`."""
    return _USER.sub("***@", url)


def read_url(url: str) -> HttpSettings:
    """Read a URL. Raises `NotConfigured` with what is wrong, and never with the API key."""
    return _Reading(url).settings()


class _Reading:
    """Reads one URL."""

    def __init__(self, url: str) -> None:
        self.shown = shown(url)
        try:
            self.parts = urlsplit(url)
            self.port = self.parts.port
        except ValueError as error:
            raise self.wrong(f"it can't be read ({error})") from None
        if self.parts.scheme not in PORTS or not self.parts.hostname or self.parts.fragment:
            raise self.wrong("the lock service's URL looks like https://server:8443")
        if re.search(r"[\s\x00-\x1f]", url):
            raise self.wrong("there is a blank or a control character in it")
        self.options = self._options()

    def wrong(self, what: str) -> NotConfigured:
        return NotConfigured(f"{self.shown}: {what}")

    def settings(self) -> HttpSettings:
        parts = self.parts
        assert parts.hostname is not None
        self._safe_in_clear(parts.hostname)
        key = unquote(parts.password or parts.username or "")
        if key and "key_file" in self.options:
            raise self.wrong("the API key is given twice, before the @ and by key_file=")
        return HttpSettings(
            shown=self.shown,
            host=parts.hostname,
            port=PORTS[parts.scheme] if self.port is None else self.port,
            base=self._base(),
            find_key=key_finder(key, self.options.get("key_file")),
            tls=self._tls(),
        )

    def _base(self) -> str:
        path = self.parts.path.rstrip("/")
        if path.endswith("/v1"):
            raise self.wrong("leave out /v1: it is added")
        if not path.isascii():
            raise self.wrong("write other letters than ASCII in the path as %XX")
        return path

    def _options(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in parse_qsl(self.parts.query, keep_blank_values=True):
            if name not in OPTIONS:
                raise self.wrong(f"no such option as {name}=; there are {', '.join(OPTIONS)}")
            if name in found or not value:
                raise self.wrong(f"{name}= is given twice, or is empty")
            found[name] = value
        return found

    def _safe_in_clear(self, host: str) -> None:
        """Raise if the API key would cross a network unencrypted."""
        said = self.options.get("insecure", "false").lower()
        if said not in _FLAGS:
            raise self.wrong("insecure= is true or false")
        if self.parts.scheme == "https":
            if _FLAGS[said]:
                advice = "for a certificate of your own give cafile=FILE, which may be itself"
                raise self.wrong(f"insecure=true is for http://; {advice}")
        elif not (_FLAGS[said] or is_here(host)):
            raise self.wrong(
                "http:// sends the API key and lease ids in clear: write https://, or, where "
                "the network itself is encrypted, add ?insecure=true"
            )

    def _tls(self) -> "Callable[[], ssl.SSLContext] | None":
        cafile = self.options.get("cafile")
        if self.parts.scheme == "http":
            if cafile is not None:
                raise self.wrong("cafile= is for https://")
            return None

        @cache
        def make() -> "ssl.SSLContext":
            import ssl

            try:
                context = ssl.create_default_context(cafile=cafile)
            except (OSError, ValueError) as error:
                raise self.wrong(f"the CA's file {cafile} can't be used: {error}") from error
            context.set_alpn_protocols(["http/1.1"])
            return context

        return make
