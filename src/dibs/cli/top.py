"""`dibs top`: a live table of what is held and waited for."""

import sys
from collections.abc import Callable

import click

from dibs.cli import options
from dibs.cli.options import Kind
from dibs.cli.wording import kind_of, printable, shown, span, taken
from dibs.model import Status

type Rank = Callable[[Status], tuple[float, bytes]]
"""What comes first is least."""


def waiting(status: Status) -> int:
    """How many wait."""
    return max(status.waiting, len(status.waiters))


def ends_in(status: Status) -> float:
    """When the first of its leases ends; far away if there is none."""
    return min((each.expires_in for each in status.holders), default=1e9)


def _held(status: Status) -> float:
    return max((each.held_for for each in status.holders), default=0.0)


RANKS: dict[str, Rank] = {
    "waiting": lambda status: (-waiting(status), status.key),
    "expires": lambda status: (ends_in(status), status.key),
    "held": lambda status: (-_held(status), status.key),
    "name": lambda status: (0.0, status.name),
}


@click.command()
@click.argument("prefix", type=options.Prefix(), default=b"", metavar="[PREFIX]")
@options.kind
@click.option(
    "--sort",
    type=click.Choice(list(RANKS)),
    default="waiting",
    show_default=True,
    help="Order: longest queue, next to expire, longest held, or by name.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to read the store.",
)
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@options.store
@options.as_json
def top(
    prefix: bytes,
    kind: Kind | None,
    sort: str,
    every: float,
    once: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Show a live table of what is held and waited for.

    With PREFIX, only names that begin with it. Keys: w sorts by queue length, e by expiry, h by time held,
    n by name; q quits. Without a terminal it prints the table once; with --json it prints the same
    objects as `dibs list`.
    """
    if not (as_json or once) and sys.stdout.isatty() and sys.stdin.isatty():
        _watch(prefix, kind, sort, every, url)
        return 0
    with options.open_client(url) as client:
        found = sorted(client.list(prefix, kind), key=RANKS[sort])
    (_emit if as_json else _print)(found)
    return 0


def _watch(prefix: bytes, kind: Kind | None, sort: str, every: float, url: str | None) -> None:
    from dibs.cli.top_screen import Screen

    with options.open_client(url) as client:
        Screen(lambda: client.list(prefix, kind), sort, every).run()


def _emit(found: list[Status]) -> None:
    from dibs.cli.output import emit, status_shape

    for status in found:
        emit(status_shape(status))


def _print(found: list[Status]) -> None:
    for cells in (HEAD, *(row(status, 0.0) for status in found)):
        print("\t".join(cells))


HEAD = ("KIND", "NAME", "HOLDER", "HELD FOR", "EXPIRES IN", "WAITING")


def row(status: Status, aged: float) -> tuple[str, ...]:
    """A key, so many seconds after it was looked at."""
    ends = ends_in(status) - aged
    line = waiting(status)
    return (
        kind_of(status.key),
        shown(status.key),
        _holder(status),
        span(_held(status) + aged) if status.holders else "",
        span(ends) if ends < 1e8 else "",
        str(line) if line else "",
    )


def _holder(status: Status) -> str:
    if not status.holders:
        return "free"
    first = status.holders[0]
    note = f" ({printable(first.note)})" if first.note else ""
    who = f"{printable(first.owner)}{note}"
    if first.owner and first.state != "held":
        who = f"{who} [{first.state}]"
    elif not first.owner and first.state == "kept":  # for its min_hold, or its lock_delay
        who = f"retained{note}"
    more = f" and {status.holding - 1:,} more" if status.holding > 1 else ""
    return f"{taken(status)}{who}{more}"
