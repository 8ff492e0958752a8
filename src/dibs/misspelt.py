"""Reject unknown settings, and suggest the closest match.

Messages never show the value: it can be a misspelt URL with a password.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from dibs.errors import NotConfigured

_MEANT = {
    **dict.fromkeys(("address", "bind", "host", "port"), "listen"),
    **dict.fromkeys(("backend", "database", "redis", "url"), "store"),
    **dict.fromkeys(("cert", "certificate"), "tls_cert"),
    **dict.fromkeys(("grace", "timeout"), "drain_time"),
    "proxies": "trusted_proxies",
}
"""What other programs call our settings."""

_LINK = re.compile(
    r"(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)", re.ASCII
)
_LINK_URL = re.compile(r"(?:tcp|udp|sctp)://.+")


def refuse_unknown(where: str, found: Iterable[str], known: Collection[str]) -> None:
    """Raises `NotConfigured` for a key of a file that is not known there."""
    for key in found:
        if key not in known:
            close = near(key, known)
            raise NotConfigured(
                f"{where} unknown setting {key}{close and f'. Did you mean {close}?'}"
            )


def refuse_unknown_variables(
    prefix: str, environ: Mapping[str, str], known: Collection[str]
) -> None:
    """Likewise for variables that begin so; those that Kubernetes makes of Services are left alone."""
    for variable, value in environ.items():
        name = variable.removeprefix(prefix)
        if name == variable or name in known or is_link(name, value):
            continue
        close = near(name.lower(), {each.lower() for each in known})
        meant = f". Did you mean {prefix}{close.upper()}?" if close else ""
        raise NotConfigured(f"unknown setting {variable}{meant}")


def is_link(name: str, value: str) -> bool:
    """It tells where a Service is, whose name begins as our variables do."""
    return bool(_LINK.fullmatch(name) or (name.endswith("PORT") and _LINK_URL.fullmatch(value)))


def near(key: str, known: Collection[str]) -> str:
    """The setting that may be meant; empty for none."""
    meant = _MEANT.get(key, "")
    return meant if meant in known else next(iter(get_close_matches(key, known, 1)), "")
