"""`dibs show`: the holders and waiters of one name."""

import click

from dibs.cli import options
from dibs.cli.exits import FREE
from dibs.cli.naming import base64_name, bytes_of, decode, find, written
from dibs.cli.options import Kind
from dibs.cli.wording import holding, kind_of, printable, span
from dibs.model import MANY, Holder, Status, Waiter


@click.command(
    epilog=options.examples("dibs show nightly", "dibs show nightly --json | jq .holders[0].owner")
)
@click.argument("name", type=options.Spelt())
@base64_name
@decode
@options.kind
@options.store
@options.as_json
def show(
    name: bytes,
    is_base64: bool,
    is_decoded: bool | None,
    kind: Kind | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Show who holds NAME and who waits for it.

    Exit codes: 0 held, 1 free.
    """
    name = bytes_of(name, is_base64)
    with options.open_to_look(url) as client:
        status = find(client, name, kind)
    if as_json:
        from dibs.cli.output import emit, status_shape

        emit(status_shape(status, decode=is_decoded is not False))
    else:
        print("\n".join(_lines(status, is_decoded)))
    return 0 if status.holders else FREE


def _lines(status: Status, is_decoded: bool | None = None) -> list[str]:
    name = written(status.key, is_decoded)
    capacity = f", capacity {status.capacity}" if 1 < status.capacity < MANY else ""
    lines = [f"{kind_of(status.key)} {name}{capacity}: {'held' if status.holders else 'free'}"]
    lines += [_holder_line(holder) for holder in status.holders]
    unlisted = status.holding - len(status.holders)
    lines += [f"  and {unlisted:,} more holding"] if unlisted > 0 else []
    lines += [_waiter_line(place, waiter) for place, waiter in enumerate(status.waiters, start=1)]
    unnamed = status.waiting - len(status.waiters)
    return [*lines, f"  and {unnamed:,} more waiting"] if unnamed > 0 else lines


def _holder_line(holder: Holder) -> str:
    what = f", slots {','.join(map(str, holder.slots))}" if len(holder.slots) > 1 else ""
    if holder.units >= MANY:
        what = ", writing"
    return f"  {holding(holder)}, token {holder.token}{what}, expires in {span(holder.expires_in)}"


def _waiter_line(place: int, waiter: Waiter) -> str:
    note = f" ({printable(waiter.note)})" if waiter.note else ""
    units = f", wants {waiter.units}" if 1 < waiter.units < MANY - 1 else ""
    if waiter.units >= MANY - 1:  # one less is an upgrade
        units = ", wants to write"
    owner = printable(waiter.owner)
    return f"  {place}. in the queue: {owner}{note}, for {span(waiter.waited)}{units}"
