"""What a Temporal URL says: see `TemporalStore` for how one is written."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from dibs.errors import NotConfigured
from dibs.stores.temporal.client.settings import PORT, Settings
from dibs.stores.temporal.protocol.queues import task_queue

_FORM = re.compile(r"temporal://(?P<host>[^/?@]*)(?:/(?P<namespace>[^?]*))?(?:\?(?P<options>.*))?",
                   re.DOTALL)  # fmt: skip
_HOST = re.compile(r"(?P<name>\[[^\]]+\]|[^:\[\]]*)(?::(?P<port>\d+))?")
_LOGIN = re.compile(r"(?<=://).*@", re.DOTALL)
_SECRET_OPTION = re.compile(r"(?<=key=)[^&]*", re.IGNORECASE)


def shown(url: str) -> str:
    """The URL as it may be shown: without its API key, wherever that was written."""
    return _SECRET_OPTION.sub("***", _LOGIN.sub("***@", url))


def read_url(url: str) -> Settings:
    """Take a URL apart. Raises `NotConfigured`, with what is wrong, and never with an API key."""
    name = shown(url)
    if "@" in url.partition("?")[0]:
        raise NotConfigured(
            f"{name}: Temporal has no user and no password; for an API key set TEMPORAL_API_KEY, "
            "or name a profile that has one with ?profile="
        )
    form = _FORM.fullmatch(url)
    if form is None:
        raise NotConfigured(f"{name}: a Temporal URL looks like temporal://host:7233/namespace")
    options = _options(form["options"] or "", name)
    if options.get("tls") is False:
        needless = sorted(option for option in options if option.startswith("tls_"))
        if needless:
            raise NotConfigured(f"{name}: {needless[0]}= needs TLS, and tls=false turns it off")
    if ("tls_cert" in options) != ("tls_key" in options):
        raise NotConfigured(f"{name}: tls_cert= and tls_key= belong together")
    namespace = unquote(form["namespace"] or "")
    if "/" in namespace:
        raise NotConfigured(f"{name}: {namespace!r} is no namespace, as it has a / in it")
    api_key = options.pop("api_key", None)
    options["task_queue"] = task_queue(options.get("task_queue"))
    return Settings(
        shown=name,
        address=_address(form["host"], name),
        namespace=namespace,
        api_key=None if api_key is None else lambda: api_key,
        **options,
    )


def _address(text: str, name: str) -> str:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 65536 or (found["port"] and not found["name"]):
        raise NotConfigured(f"{name}: {text!r} is no host:port")
    return f"{unquote(found['name'])}:{port}" if text else ""


def _options(text: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option, value in parse_qsl(text, keep_blank_values=True):
        read = _OPTIONS.get(option)
        if read is None:
            known = ", ".join(sorted(_OPTIONS))
            raise NotConfigured(f"{name}: there is no option {option}=; known are {known}")
        if option in found:
            raise NotConfigured(f"{name}: {option}= is given twice")
        try:
            found[option] = read(value)
        except ValueError as error:
            raise NotConfigured(f"{name}: {option}= {error}") from None
    return found


def _flag(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError("is true or false")
    return known[text.lower()]


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


def _file(text: str) -> Path:
    return Path(_text(text))


_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "task_queue": _text,
    "profile": _text,
    "config_file": _file,
    "api_key": _text,
    "tls": _flag,
    "tls_server_name": _text,
    "tls_ca": _file,
    "tls_cert": _file,
    "tls_key": _file,
}
