"""Folders of SQLite files, of records or leases: what is missing is made, which may be a mistake."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dibs.backends.sqlite import file
from dibs.backends.sqlite.url import Address


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL. Raises `NotConfigured` for one that is none."""
    return Path(Address(url).path)


def open_to_others(urls: Iterable[str]) -> Sequence[str]:
    """What is wrong with the permissions of these SQLite files."""
    paths = dict.fromkeys(str(sqlite_path(url)) for url in urls if url.startswith("sqlite:"))
    return [told for each in paths if (told := file.open_to_others(each))]


def missing_folders(urls: Iterable[str]) -> Sequence[str]:
    """Those that are yet to be made. Raises `NotConfigured` for a URL of SQLite's that is none."""
    paths = [sqlite_path(url) for url in urls if url.startswith("sqlite:")]
    folders = dict.fromkeys(path.parent for path in paths)
    return [str(folder) for folder in folders if not folder.exists()]
