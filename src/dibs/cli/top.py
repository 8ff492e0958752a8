"""`dibs top`: a live table of what is held and waited for."""

import heapq
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dibs.cli import options
from dibs.cli.listing import is_finished_tick
from dibs.cli.options import Kind
from dibs.cli.output import emit, kind_of, print_table, printable, shown, span, status_shape, taken
from dibs.errors import BackendUnavailable
from dibs.model import Status

type Rank = Callable[[Status], tuple[float, bytes]]
"""What comes first is least."""


def waiting(status: Status) -> int:
    """Number of waiters."""
    return max(status.waiting, len(status.waiters))


def ends_in(status: Status) -> float:
    """Seconds until the first of its leases ends; 1e9 if there is none."""
    return min((each.expires_in for each in status.holders), default=1e9)


def _held(status: Status) -> float:
    return max((each.held_for for each in status.holders), default=0.0)


RANKS: dict[str, Rank] = {
    "waiting": lambda status: (-waiting(status), status.key),
    "expires": lambda status: (ends_in(status), status.key),
    "held": lambda status: (-_held(status), status.key),
    "name": lambda status: (0.0, status.name),
}


@click.command(epilog=options.examples("dibs top", "dibs top orders/ --sort expires"))
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
        found = sorted(_in_use(client.list(prefix, kind)), key=RANKS[sort])
    if as_json:
        for status in found:
            emit(status_shape(status))
    else:
        print_table(HEAD, (row(status, 0.0) for status in found), headless=False)
    return 0


def _in_use(found: Iterable[Status]) -> Iterator[Status]:
    """Without finished runs of scheduled tasks, as in `dibs list`."""
    return (status for status in found if not is_finished_tick(status))


def _watch(prefix: bytes, kind: Kind | None, sort: str, every: float, url: str | None) -> None:
    with options.open_client(url) as client:
        Screen(lambda: _in_use(client.list(prefix, kind)), sort, every).run()


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
    elif not first.owner and first.state == "retained":  # for its min_hold, or its lock_delay
        who = f"retained{note}"
    more = f" and {status.holding - 1:,} more" if status.holding > 1 else ""
    return f"{taken(status)}{who}{more}"


class Keyboard:
    """A terminal that hands over each key at once."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, timeout: float) -> str:
        """The keys pressed by then; empty if there are none. Raises `EOFError` at the end of all."""
        if not select.select([self._file], [], [], timeout)[0]:
            return ""
        pressed = os.read(self._file, 64)
        if not pressed:
            raise EOFError
        return pressed.decode("utf-8", "replace")


@contextmanager
def keyboard() -> Generator[Keyboard]:
    """The keyboard of stdin's terminal, which is as it was afterwards. Ctrl-C still interrupts."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        yield Keyboard(file)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


BAR = 10
"""Letters of a lease's bar."""

TICK = 0.25
"""Seconds between two drawings."""

REST = 4
"""After a look there is a pause, so many times as long as that took."""

SORTED_BY = {"w": "waiting", "e": "expires", "h": "held", "n": "name"}


class Screen:
    """See the module."""

    def __init__(self, look: Callable[[], Iterable[Status]], sort: str, every: float) -> None:
        self._look = look
        self._sort = sort
        self._every = every
        self._console = Console()
        self._found: list[Status] = []
        self._seen_at = 0.0
        self._count = self._in_line = 0
        self._trouble = ""
        self._longest: dict[str, float] = {}
        """The most time that each lease was seen to have, by its fingerprint."""

    def run(self) -> None:
        """Until `q` is pressed. Raises `BackendUnavailable` if not even the first look succeeds."""
        next_look = self._refresh()
        with (
            keyboard() as keys,
            Live(self._drawn(), console=self._console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                try:
                    pressed = keys.read(TICK)
                except EOFError:
                    return
                if "q" in pressed:
                    return
                wanted = [SORTED_BY[key] for key in pressed if key in SORTED_BY]
                if wanted:
                    self._sort = wanted[-1]
                if wanted or time.monotonic() >= next_look:
                    next_look = self._refreshed_or_told()
                live.update(self._drawn(), refresh=True)

    def _refreshed_or_told(self) -> float:
        try:
            return self._refresh()
        except BackendUnavailable as error:
            self._trouble = str(error)
            return time.monotonic() + self._every

    def _refresh(self) -> float:
        """Look, and tell when to look again."""
        begun = time.monotonic()
        self._count = self._in_line = 0
        room = max(self._console.size.height - 3, 1)
        self._found = heapq.nsmallest(room, self._counted(), RANKS[self._sort])
        self._seen_at, self._trouble = time.monotonic(), ""
        leases = [each for status in self._found for each in status.holders]
        self._longest = {
            each.lease: max(each.expires_in, self._longest.get(each.lease, 0.0)) for each in leases
        }
        return self._seen_at + max(self._every, REST * (self._seen_at - begun))

    def _counted(self) -> Iterator[Status]:
        for status in self._look():
            self._count += 1
            self._in_line += waiting(status)
            yield status

    def _drawn(self) -> Group:
        aged = time.monotonic() - self._seen_at
        table = Table(box=None, pad_edge=False, expand=True)
        for title in (*HEAD[:-2], "LEASE", *HEAD[-2:]):
            table.add_column(Text(title), no_wrap=True, overflow="ellipsis")
        for status in self._found:
            cells = [Text(cell) for cell in row(status, aged)]
            table.add_row(*cells[:-2], self._bar(status, aged), *cells[-2:])
        told = self._trouble or f"{self._count} in use, {self._in_line} waiting"
        keys = f"sorted by {self._sort}; keys: w e h n, q quits"
        return Group(Text(f"{told}    {keys}", style="red" if self._trouble else "dim"), table)

    def _bar(self, status: Status, aged: float) -> Text:
        """A bar for the rest of the lease that ends first."""
        if not status.holders:
            return Text("")
        first = min(status.holders, key=lambda each: each.expires_in)
        whole = max(self._longest.get(first.lease, 0.0), 0.001)
        part = min(max((first.expires_in - aged) / whole, 0.0), 1.0)
        full = round(BAR * part)
        colour = "green" if part > 0.5 else "yellow" if part > 0.2 else "red"
        return Text("█" * full + "░" * (BAR - full), style=colour)
