"""URLs as they may be shown."""

import re

_SECRET = re.compile(r"(?<=://)([^/?#@:]*):[^/?#@]*(?=@)")


def redacted(url: str) -> str:
    """The URL without its password."""
    return _SECRET.sub(r"\1:***", url)
