"""`dibs list`: resources with holders or waiters, once or from now on."""

import heapq
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.options import Kind, base64_name, decode, written
from dibs.cli.output import Shape, TableRow, emit, kind_of, print_table, printable
from dibs.cli.statuses import last_end, state, status_shape
from dibs.errors import BackendUnavailable
from dibs.model import Status
from dibs.stores.http.names import MARK, decoded, encoded

if TYPE_CHECKING:
    from rich.console import Group

    from dibs.cli.service import Remote

_HEAD: TableRow = ("KIND", "NAME", "STATE", "EXPIRES IN", "WAITING")

_LONG = ("NAME", "STATE")
"""Columns that are cut on a narrow terminal."""

_TICK = re.compile(rb"tasklock:.+@\d{4,}-\d\d-\d\dT[\d:.]+Z", re.DOTALL)
"""The lock of one run of a scheduled task: see `tasks.definition.Scheduled.tick_name`."""


REST = 4
"""Shortest pause between two reads with `--watch`, in times that a read takes."""


def _waiting(status: Status) -> int:
    return max(status.waiting, len(status.waiters))


ORDERS: dict[str, Callable[[Status], float]] = {
    "waiting": lambda status: -_waiting(status),
    "expires": lambda status: min((each.expires_in for each in status.holders), default=1e9),
    "held": lambda status: -max((each.held_for for each in status.holders), default=0.0),
    "name": lambda status: 0.0,
}
"""Which key comes first; equal ones are in the order of their names."""


@click.command(
    name="list",
    epilog=options.examples(
        "dibs list",
        "dibs list orders/ --watch --sort waiting",
        "dibs list --json | jq .name",
    ),
)
@click.argument("prefix", type=options.Prefix(), default=b"", metavar="[PREFIX]")
@options.kind
@click.option("-a", "--all", "is_all", is_flag=True, help="Also finished runs of scheduled tasks.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(list(ORDERS)),
    help="Order: longest queue, next to expire, longest held, or by name [kind and name].",
)
@click.option("--watch", is_flag=True, help="Show the table, always up to date, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch reads the store.",
)
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
    locks: bool,
    watch: bool,
    every: float,
    kind: Kind | None,
    **how: Any,
) -> int:
    """List what is held or waited for.

    With PREFIX, only names that begin with it. `dibs top` is `dibs list --watch`.
    """
    if watch and (locks or how["as_json"]):
        raise click.UsageError("--watch shows a table: leave out --locks and --json")
    if watch and not sys.stdout.isatty():
        raise click.UsageError("--watch needs a terminal; in a pipe use `dibs events`")
    if locks:
        _list_locks(prefix, kind, **how)
        return 0
    with options.open_client() if watch else options.open_to_look() as client:

        def look() -> Iterable[Status]:
            found: Iterable[Status] = client.list(prefix, kind)
            return found if how["is_all"] else filter(_is_in_use, found)

        if watch:
            _Watch(look, every, how["order"] or "waiting", how["is_decoded"]).run()
        else:
            _list(look(), **how)
    return 0


def _list(
    found: Iterable[Status],
    is_all: bool,
    order: str | None,
    is_decoded: bool | None,
    headless: bool,
    as_json: bool,
) -> None:
    if order is not None:
        found = sorted(found, key=_rank(order))
    if as_json:
        for status in found:
            emit(status_shape(status, decode=is_decoded is not False))
    else:
        print_table(_HEAD, (_row(status, is_decoded) for status in found), headless=headless)


def _rank(order: str) -> Callable[[Status], tuple[float, bytes, bytes]]:
    first = ORDERS[order]
    return lambda status: (first(status), status.name, status.key)


class _Watch:
    """The table on a terminal, drawn again after each read of the store."""

    def __init__(
        self,
        look: Callable[[], Iterable[Status]],
        every: float,
        order: str,
        is_decoded: bool | None,
    ) -> None:
        self._look = look
        self._every = every
        self._order = order
        self._is_decoded = is_decoded
        self._found: list[Status] = []
        self._title = ""

    def run(self) -> None:
        """Go on until interrupted. Raises `BackendUnavailable` if not even the first read succeeds."""
        from rich.console import Console
        from rich.live import Live

        console = Console()
        pause = self._read(console.size.height)
        with Live(self._drawn(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(pause)
                try:
                    pause = self._read(console.size.height)
                except BackendUnavailable as error:
                    self._title, pause = str(error), self._every
                live.update(self._drawn(), refresh=True)

    def _read(self, height: int) -> float:
        """Read the store. Returns the seconds until the next time."""
        begun = time.monotonic()
        count = waiting = 0

        def counted() -> Iterator[Status]:
            nonlocal count, waiting
            for status in self._look():
                count += 1
                waiting += _waiting(status)
                yield status

        self._found = heapq.nsmallest(max(height - 3, 1), counted(), _rank(self._order))
        self._title = f"{count} in use, {waiting} waiting; by {self._order}; Ctrl-C ends"
        return max(self._every, REST * (time.monotonic() - begun))

    def _drawn(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        line = partial(Text, no_wrap=True, overflow="ellipsis")
        table = Table(box=None, pad_edge=False)
        for title in _HEAD:
            table.add_column(Text(title), no_wrap=title not in _LONG)
        for status in self._found:
            table.add_row(*map(line, _row(status, self._is_decoded)))
        return Group(line(self._title), table)


def _list_locks(
    name: bytes,
    kind: Kind | None,
    is_all: bool,
    order: str | None,
    is_decoded: bool | None,
    headless: bool,
    as_json: bool,
) -> None:
    if order is not None:
        raise click.UsageError("give either --locks or --sort, not both")
    if kind not in (None, "lock"):
        raise click.UsageError(f"give either --locks or --kind {kind}, not both")
    if as_json and is_decoded:
        raise click.UsageError("give either --json or -D: the JSON of --locks has names in base64")
    found = held_locks(name)
    if as_json:
        for lock in found:
            emit(lock)
    else:
        rows = (row(lock, is_decoded=bool(is_decoded)) for lock in found)
        print_table(HEAD, rows, headless=headless)


def _is_in_use(status: Status) -> bool:
    """False if it only records that a scheduled task has run at some time."""
    if status.waiting or not all(holder.state == "retained" for holder in status.holders):
        return True
    return _TICK.fullmatch(status.key) is None


def _row(status: Status, is_decoded: bool | None = None) -> TableRow:
    waiting = _waiting(status)
    return (
        kind_of(status.key),
        written(status.key, is_decoded),
        state(status),
        last_end(status),
        str(waiting) if waiting else "",
    )


HEAD = ("LOCK-NAME", "LOCK-ID", "CLIENT-ID", "CLIENT-IP", "TTL")


def held_locks(name: bytes) -> Iterator[Shape]:
    """The held lock of that name, those in a directory (which ends in a slash), or all."""
    full = options.full_url()
    if options.is_service(full):
        with needing("http"):
            from dibs.cli.service import Remote
        return _locks_of(Remote(full), name)
    return _locks_in_store(name)


def row(lock: Shape, *, is_decoded: bool) -> tuple[str, ...]:
    """A lock's line. Names are in base64 unless decoded, as in Seaplane's command line."""
    name, info = lock["name"], lock["info"]
    if is_decoded:
        name = printable(decoded(name).decode("utf-8", "backslashreplace"))
    cells = (lock["id"], info["client-id"], info["ip"], str(info["ttl"]))
    return (name, *map(printable, cells))


def _locks_of(service: "Remote", name: bytes) -> Iterator[Shape]:
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


def _locks_in_store(name: bytes) -> Iterator[Shape]:
    """Locks that are held, read from the store itself."""
    with options.open_to_look() as client:
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
