"""The files of the dashboard: all are read when the server starts, so no request's path leads to a disk."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import NamedTuple

from dibs.server.answers import Answer, Header

INDEX = "index.html"

MEDIA = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".woff2": b"font/woff2",
    ".webmanifest": b"application/manifest+json",
}
"""What a file is, by how its name ends. Others are not served."""


class File(NamedTuple):
    """One file, as it is served."""

    body: bytes
    headers: tuple[Header, ...]
    """With its etag, which is its content's hash."""

    @property
    def etag(self) -> bytes:
        """What names this content."""
        return dict(self.headers)[b"etag"]


class FileAnswer(Answer):
    """A file: browsers may keep it, and ask each time whether it is still the same."""

    caching = (b"cache-control", b"no-cache")


def all_files() -> Mapping[str, File]:
    """The files, by their paths below `/ui/`."""
    return dict(_below(files(__package__) / "assets", ""))


def _below(folder: Traversable, path: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _below(each, f"{path}{each.name}/")
        elif PurePath(each.name).suffix in MEDIA:
            found.append((path + each.name, _read(each)))
    return found


def _read(file: Traversable) -> File:
    body = file.read_bytes()
    media = MEDIA[PurePath(file.name).suffix]
    etag = b'"%b"' % urlsafe_b64encode(sha256(body).digest()[:15])
    return File(body, ((b"content-type", media), (b"etag", etag)))
