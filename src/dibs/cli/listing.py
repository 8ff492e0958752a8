"""`dibs list`: resources with holders or waiters."""

import re
from collections.abc import Iterable, Iterator
from math import ceil
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.options import Kind, base64_name, bytes_of, decode, written
from dibs.cli.output import (
    Row,
    Shape,
    emit,
    kind_of,
    last_end,
    print_table,
    printable,
    state,
    status_shape,
)
from dibs.model import Status
from dibs.stores.http.names import MARK, decoded, encoded

if TYPE_CHECKING:
    from dibs.cli.service import Remote

_HEAD: Row = ("KIND", "NAME", "STATE", "EXPIRES IN", "WAITING")

_TICK = re.compile(rb"tasklock:.+@\d{4,}-\d\d-\d\dT[\d:.]+Z", re.DOTALL)
"""The lock of one run of a scheduled task: see `tasks.definition.Scheduled.tick_name`."""


@click.command(
    name="list",
    epilog=options.examples("dibs list", "dibs list orders/", "dibs list --json | jq .name"),
)
@click.argument("prefix", type=options.Prefix(), default=b"", metavar="[PREFIX]")
@options.kind
@click.option("-a", "--all", "is_all", is_flag=True, help="Also finished runs of scheduled tasks.")
@click.option(
    "--locks",
    is_flag=True,
    help="Print held locks with the columns LOCK-NAME, LOCK-ID, CLIENT-ID, CLIENT-IP and TTL. PREFIX is a "
    "lock's name, or a directory that ends in a slash. Names are in base64; -D decodes them.",
)
@base64_name
@decode
@options.no_header
@options.store
@options.as_json
def listing(
    prefix: bytes,
    is_base64: bool,
    locks: bool,
    is_all: bool,
    kind: Kind | None,
    url: str | None,
    **shown: Any,
) -> int:
    """List what is held or waited for.

    With PREFIX, only names that begin with it.
    """
    prefix = bytes_of(prefix, is_base64)
    if locks:
        _list_locks(prefix, kind, url, **shown)
    else:
        _list(prefix, kind, url, is_all, **shown)
    return 0


def _list(
    prefix: bytes,
    kind: Kind | None,
    url: str | None,
    is_all: bool,
    is_decoded: bool | None,
    headless: bool,
    as_json: bool,
) -> None:
    with options.open_to_look(url) as client:
        found: Iterable[Status] = client.list(prefix, kind)
        if not is_all:
            found = (status for status in found if not is_finished_tick(status))
        if as_json:
            _emit(found, decode=is_decoded is not False)
        else:
            rows = (_row(status, is_decoded) for status in found)
            print_table(_HEAD, rows, headless=headless)


def _list_locks(
    name: bytes,
    kind: Kind | None,
    url: str | None,
    is_decoded: bool | None,
    headless: bool,
    as_json: bool,
) -> None:

    if kind not in (None, "lock"):
        raise click.UsageError(f"give either --locks or --kind {kind}, not both")
    if as_json and is_decoded:
        raise click.UsageError("give either --json or -D: the JSON of --locks has names in base64")
    found = held_locks(url, name)
    if as_json:
        for lock in found:
            emit(lock)
    else:
        rows = (row(lock, is_decoded=bool(is_decoded)) for lock in found)
        print_table(HEAD, rows, headless=headless)


def _emit(found: Iterable[Status], *, decode: bool) -> None:
    for status in found:
        emit(status_shape(status, decode=decode))


def is_finished_tick(status: Status) -> bool:
    """Whether it only records that a scheduled task has run at some time."""
    if status.waiting or not all(holder.state == "retained" for holder in status.holders):
        return False
    return bool(_TICK.fullmatch(status.key))


def _row(status: Status, is_decoded: bool | None = None) -> Row:
    waiting = max(status.waiting, len(status.waiters))
    return (
        kind_of(status.key),
        written(status.key, is_decoded),
        state(status),
        last_end(status),
        str(waiting) if waiting else "",
    )


HEAD = ("LOCK-NAME", "LOCK-ID", "CLIENT-ID", "CLIENT-IP", "TTL")


def held_locks(url: str | None, name: bytes) -> Iterator[Shape]:
    """The held lock of that name, those in a directory (which ends in a slash), or all."""
    full = options.full_url(url)
    if options.is_service(full):
        with needing("http"):
            from dibs.cli.service import Remote
        return _told(Remote(full), name)
    return _seen(url, name)


def row(lock: Shape, *, is_decoded: bool) -> tuple[str, ...]:
    """A lock's line. Names are in base64 unless decoded, as in Seaplane's command line."""
    name, info = lock["name"], lock["info"]
    if is_decoded:
        name = printable(decoded(name).decode("utf-8", "backslashreplace"))
    told = (lock["id"], info["client-id"], info["ip"], str(info["ttl"]))
    return (name, *map(printable, told))


def _told(service: "Remote", name: bytes) -> Iterator[Shape]:
    """Ask the service, page by page. An empty page can be followed by others."""
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
    with options.open_to_look(url) as client:
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
