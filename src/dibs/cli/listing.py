"""`dibs list`: what is held and waited for."""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import click

from dibs.cli import options
from dibs.cli.drawing import draws
from dibs.cli.naming import base64_name, bytes_of, decode, written
from dibs.cli.options import Kind
from dibs.cli.wording import kind_of, span, state
from dibs.model import Status

type Row = tuple[str, ...]

_HEAD: Row = ("KIND", "NAME", "STATE", "EXPIRES IN", "WAITING")


@click.command(name="list")
@click.argument("prefix", type=options.Prefix(), default=b"", metavar="[PREFIX]")
@options.kind
@click.option(
    "--locks",
    is_flag=True,
    help="Held locks only, as LOCK-NAME, LOCK-ID, CLIENT-ID, CLIENT-IP, TTL: the one called PREFIX, or those "
    "below it if it ends in a slash. Names are base64 unless -D is given.",
)
@base64_name
@decode
@options.no_header
@options.store
@options.as_json
def listing(
    prefix: bytes, is_base64: bool, locks: bool, kind: Kind | None, url: str | None, **shown: Any
) -> int:
    """List what is held or waited for, names that begin with PREFIX only."""
    prefix = bytes_of(prefix, is_base64)
    if locks:
        _list_locks(prefix, kind, url, **shown)
    else:
        _list(prefix, kind, url, **shown)
    return 0


def _list(
    prefix: bytes,
    kind: Kind | None,
    url: str | None,
    is_decoded: bool | None,
    headless: bool,
    as_json: bool,
) -> None:
    with options.open_client(url) as client:
        found = client.list(prefix, kind)
        if as_json:
            _emit(found, decode=is_decoded is not False)
        else:
            _print(_HEAD, (_row(status, is_decoded) for status in found), headless)


def _list_locks(
    name: bytes,
    kind: Kind | None,
    url: str | None,
    is_decoded: bool | None,
    headless: bool,
    as_json: bool,
) -> None:
    from dibs.cli.lock_table import HEAD, held_locks, row

    if kind not in (None, "lock"):
        raise click.UsageError(f"--locks lists locks, and not what is a {kind}: leave one out")
    if as_json and is_decoded:
        raise click.UsageError(
            "-D: in the JSON of --locks names are base64, as they may be any bytes"
        )
    found = held_locks(url, name)
    if as_json:
        from dibs.cli.output import emit

        for lock in found:
            emit(lock)
    else:
        rows = (row(lock, is_decoded=bool(is_decoded)) for lock in found)
        _print(HEAD, rows, headless)


def _emit(found: Iterable[Status], *, decode: bool) -> None:
    from dibs.cli.output import emit, status_shape

    for status in found:
        emit(status_shape(status, decode=decode))


def _row(status: Status, is_decoded: bool | None = None) -> Row:
    expires = max((holder.expires_in for holder in status.holders), default=None)
    waiting = max(status.waiting, len(status.waiters))
    left = "" if expires is None else span(expires)
    return (
        kind_of(status.key),
        written(status.key, is_decoded),
        state(status),
        left,
        str(waiting) if waiting else "",
    )


def _print(head: Row, rows: Iterable[Row], headless: bool) -> None:
    """A table on a terminal, else lines with tabs; as they come."""
    if draws():
        _draw(head, rows, headless)
        return
    rest = iter(rows)
    first = list(islice(rest, 1))  # should it fail, then before the heading
    if not headless:
        print("\t".join(head))
    for row in chain(first, rest):
        print("\t".join(row))


def _draw(head: Row, rows: Iterable[Row], headless: bool) -> None:
    """A table, for eyes: rich is imported here only, on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=not headless)
    for title in head:
        table.add_column(Text(title), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table if table.row_count else Text("Nothing is held."))
