"""The table of `dibs list --locks`, with the columns of Seaplane's command line.

Names are base64 there, as they may be any bytes. Ids are fingerprints.
"""

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from dibs.backends.http.names import MARK, decoded, encoded
from dibs.cli import options
from dibs.cli.needing import needing
from dibs.cli.output import Shape
from dibs.cli.wording import printable
from dibs.model import Status

if TYPE_CHECKING:
    from dibs.cli.remote import Remote

HEAD = ("LOCK-NAME", "LOCK-ID", "CLIENT-ID", "CLIENT-IP", "TTL")


def held_locks(url: str | None, name: bytes) -> Iterator[Shape]:
    """The held lock of that name, those in a directory (which ends in a slash), or all."""
    full = options.full_url(url)
    if options.is_service(full):
        with needing("http"):
            from dibs.cli.remote import Remote
        return _told(Remote(full), name)
    return _seen(url, name)


def row(lock: Shape, *, is_decoded: bool) -> tuple[str, ...]:
    """A lock's line."""
    name, info = lock["name"], lock["info"]
    if is_decoded:
        name = printable(decoded(name).decode("utf-8", "backslashreplace"))
    told = (lock["id"], info["client-id"], info["ip"], str(info["ttl"]))
    return (name, *map(printable, told))


def _told(service: "Remote", name: bytes) -> Iterator[Shape]:
    """By the service, page by page. A page may be empty, and not the last."""
    if name and not name.endswith(b"/"):
        found = service.ask("GET", f"/v1/locks/{MARK}{encoded(name)}?kind=lock")
        return iter(() if found is None else (found,))
    path = f"/v1/locks/{MARK}{encoded(name[:-1])}/" if name else "/v1/locks"
    return _pages(service, path)


def _pages(service: "Remote", path: str) -> Iterator[Shape]:
    query = ""
    while True:
        page = service.ask("GET", path + query)
        yield from page["locks"]
        if page["next"] is None:
            return
        query = f"?from={MARK}{page['next']}"


def _seen(url: str | None, name: bytes) -> Iterator[Shape]:
    """In a store."""
    with options.open_client(url) as client:
        if name and not name.endswith(b"/"):
            found: Iterator[Status] = iter((client.status(name, "lock"),))
        else:
            found = client.list(name, "lock")
        for status in found:
            if status.holders:
                yield _shape(status)


def _shape(status: Status) -> Shape:
    holder = status.holders[0]
    left = ceil(max(holder.expires_in, 0.0))
    info = {"ttl": left, "client-id": holder.owner, "ip": holder.address}
    return {"name": encoded(status.name), "id": holder.lease, "info": info}
