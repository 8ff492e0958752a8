"""`leasehold list`: what is held and waited for."""

import sys
from collections.abc import Iterable

import click

from leasehold.cli import options
from leasehold.cli.options import Kind
from leasehold.cli.wording import holders, is_slot_mode, kind_of, shown, span
from leasehold.model import Status

type Row = tuple[str, str, str, str, str]

_HEAD: Row = ("KIND", "NAME", "STATE", "EXPIRES IN", "WAITING")


@click.command(name="list")
@click.argument("prefix", type=options.Prefix(), default=b"", metavar="[PREFIX]")
@options.kind
@options.store
@options.as_json
def listing(prefix: bytes, kind: Kind | None, url: str | None, as_json: bool) -> int:
    """List what is held or waited for, names that begin with PREFIX only."""
    with options.open_client(url) as client:
        found = client.list(prefix, kind)
        if as_json:
            _emit(found)
        elif sys.stdout.isatty():
            _draw(found)
        else:
            for row in (_HEAD, *map(_row, found)):
                print("\t".join(row))
    return 0


def _emit(found: Iterable[Status]) -> None:
    from leasehold.cli.output import emit, status_shape

    for status in found:
        emit(status_shape(status))


def _row(status: Status) -> Row:
    known = [holder for holder in status.holders if not is_slot_mode(holder)]
    expires = max((holder.expires_in for holder in known), default=None)
    waiting = max(status.waiting, len(status.waiters))
    left = "" if expires is None else span(expires)
    return (
        kind_of(status.key),
        shown(status.key),
        holders(status),
        left,
        str(waiting) if waiting else "",
    )


def _draw(found: Iterable[Status]) -> None:
    """A table, for eyes: rich is imported here only, on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in _HEAD:
        table.add_column(Text(title), overflow="fold")
    for status in found:
        table.add_row(*map(Text, _row(status)))
    Console().print(table if table.row_count else Text("Nothing is held."))
