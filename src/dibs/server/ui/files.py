"""The files of the dashboard, read when the server starts, and the policy that browsers get with them."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import NamedTuple

from starlette.responses import Response

from dibs.server.api.responses import Header

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


_MAY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "manifest-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'self'",
)

_FEATURES = (
    "accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "fullscreen",
    "geolocation", "gyroscope", "hid", "idle-detection", "magnetometer", "microphone", "midi",
    "payment", "picture-in-picture", "publickey-credentials-get", "screen-wake-lock", "serial",
    "usb", "xr-spatial-tracking",
)  # fmt: skip
"""What browsers know; `clipboard-write` is not here, as names may be copied."""

POLICY: tuple[Header, ...] = (
    (b"content-security-policy", "; ".join(_MAY).encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", ", ".join(f"{each}=()" for each in _FEATURES).encode()),
)
"""With every answer at `/` and below `/ui/`; besides those headers that every answer of a server has."""


class File(NamedTuple):
    """One file, as it is served."""

    body: bytes
    headers: tuple[Header, ...]
    """With its etag, which is its content's hash."""

    @property
    def etag(self) -> bytes:
        """What names this content."""
        return dict(self.headers)[b"etag"]


def file_response(file: File, *, known: bool) -> Response:
    """A file, or 304 if it is known. Browsers may keep it, and ask each time whether it is still the same."""
    response = Response(None, 304) if known else Response(file.body)
    response.raw_headers += (*file.headers, (b"cache-control", b"no-cache"), *POLICY)
    return response


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
