"""URLs as they may be shown."""

import re

_SECRET = re.compile(r"(?<=://)([^/?#@:]*):[^/?#@]*(?=@)")
_KEY = re.compile(r"(?<=http://|ttps://|nats://)[^/?#@:]+(?=@)", re.IGNORECASE)


def redacted(url: str) -> str:
    """The URL without its password, and without a lone API key (lock service) or token (NATS)."""
    return _SECRET.sub(r"\1:***", _KEY.sub("***", url))
