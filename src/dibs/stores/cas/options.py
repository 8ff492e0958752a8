"""The options of a store's URL: what stands after the `?`."""

from collections.abc import Collection
from urllib.parse import parse_qsl


def read_options(text: str, names: Collection[str]) -> dict[str, str]:
    """Read options. Raises `ValueError` for one that is not in `names`, is given twice, or is empty."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in names:
            raise ValueError(f"no such option as {name}=; there are {', '.join(names)}")
        if name in found or not value:
            raise ValueError(f"{name}= is given twice, or is empty")
        found[name] = value
    return found
