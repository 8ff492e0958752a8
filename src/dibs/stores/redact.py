"""URLs as they may be shown."""

import re

_SECRET = re.compile(r"(?<=://)([^/?#@:]*):[^/?#@]*(?=@)")
_KEY = re.compile(r"(?<=http://|ttps://)[^/?#@:]+(?=@)", re.IGNORECASE)


def redacted(url: str) -> str:
    """The URL without its password; for the lock service a user's name may be its API key."""
    return _SECRET.sub(r"\1:***", _KEY.sub("***", url))
