"""What a sqlite URL names: a file, and a few options."""

import os
from pathlib import Path
from urllib.parse import parse_qsl, unquote_to_bytes

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted

PATIENCE = 10.0
"""How long a busy file is tried, in seconds, unless the URL says otherwise."""


class Address:
    """A URL taken apart: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///~/home.db`.

    Options: `timeout`, the seconds for which a file that others keep locked is tried, and
    `unsafe_network_fs=1`. Raises `NotConfigured`, with what is wrong, for everything else.
    """

    __slots__ = ("path", "patience", "unsafe_network_fs")

    def __init__(self, url: str) -> None:
        location, _, options = url.partition("?")
        self.path = _path(url, location)
        self.patience = PATIENCE
        self.unsafe_network_fs = False
        for name, value in parse_qsl(options, keep_blank_values=True):
            self._set(url, name, value)

    def _set(self, url: str, name: str, value: str) -> None:
        if name == "timeout":
            self.patience = _seconds(url, value)
        elif name == "unsafe_network_fs" and value in ("0", "1"):
            self.unsafe_network_fs = value == "1"
        else:
            raise NotConfigured(
                f"{redacted(url)!r}: no such option as {name}={value}; "
                "known are timeout=SECONDS and unsafe_network_fs=1"
            )


def _path(url: str, location: str) -> str:
    prefix = "sqlite:///"
    if not location.startswith(prefix):
        raise NotConfigured(
            f"{redacted(url)!r} is no URL of a SQLite file: sqlite:///relative.db has three slashes, "
            "sqlite:////absolute/path.db has four"
        )
    path = os.fsdecode(unquote_to_bytes(location.removeprefix(prefix)))
    if not path or path == ":memory:":
        raise NotConfigured(
            f"{redacted(url)!r} names no file; for leases in this process use memory://"
        )
    if "\0" in path or path.endswith("/"):
        raise NotConfigured(f"{redacted(url)!r} names no file")
    at_home = path.startswith("~/")
    return str((Path(path).expanduser() if at_home else Path(path)).absolute())


def _seconds(url: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 3600:
        raise NotConfigured(
            f"{redacted(url)!r}: timeout={value} must be a number of seconds, up to an hour"
        )
    return seconds
