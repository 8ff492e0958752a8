"""`dibs top` on a terminal: looks now and then, draws often, heeds keys."""

import heapq
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dibs.cli.top import HEAD, RANKS, row, waiting
from dibs.errors import BackendUnavailable
from dibs.model import Status


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
        """What is left of the lease that ends first."""
        if not status.holders:
            return Text("")
        first = min(status.holders, key=lambda each: each.expires_in)
        whole = max(self._longest.get(first.lease, 0.0), 0.001)
        part = min(max((first.expires_in - aged) / whole, 0.0), 1.0)
        full = round(BAR * part)
        colour = "green" if part > 0.5 else "yellow" if part > 0.2 else "red"
        return Text("█" * full + "░" * (BAR - full), style=colour)
