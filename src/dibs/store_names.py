"""What a store may be called, by those who use several."""

import re

from dibs.backends.redact import redacted

_NAME = re.compile(r"[a-z0-9_-]+", re.ASCII)


def store_name(name: object) -> str:
    """A name of a store. Raises `TypeError` or `ValueError` for what can't be one."""
    if not isinstance(name, str):
        raise TypeError(f"a store's name is {name!r}: give a text, such as 'reports'")
    if "://" in name:
        raise ValueError(
            f"{redacted(name)!r} is a URL, and no name of a store: give client=connect(url), or "
            "name it in the settings, and give client='reports'"
        )
    if name == "default":
        raise ValueError(
            "'default' is not a store name. Primitives without client= use the default store: "
            "connect(url, default=True), DIBS_URL, or url at the top of the settings file"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(f"a store's name is {name!r}: write it with a to z, 0 to 9, _ and -")
    return name
