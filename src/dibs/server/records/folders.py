"""Folders of SQLite files, of records or leases: what is missing is made, which may be a mistake."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dibs.backends.sqlite.url import Address


def missing_folders(urls: Iterable[str]) -> Sequence[str]:
    """Those that are yet to be made. Raises `NotConfigured` for a URL of SQLite's that is none."""
    paths = [Path(Address(url).path) for url in urls if url.startswith("sqlite:")]
    folders = dict.fromkeys(path.parent for path in paths)
    return [str(folder) for folder in folders if not folder.exists()]
