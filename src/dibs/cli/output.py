"""Output of the command line: results on stdout, messages on stderr, as text or as JSON.

Fields are only ever added to the JSON.
"""

import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, TextIO

import click

from dibs.errors import DibsError


def fill() -> None:
    """Open /dev/null for each standard stream that is closed, for this process and its children.

    Call it before any other file is opened. Otherwise the next file, of a store or of CMD, takes the number
    of a standard stream.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            os.set_inheritable(opened, True)  # noqa: FBT003
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)


def needs_stdout(otherwise: str) -> None:
    """Raises `UsageError` if stdout was closed; `otherwise` says what would be lost."""
    if sys.__stdout__ is None:
        raise click.UsageError(f"stdout is closed: {otherwise}")


class Unwritten(OSError):
    """stdout cannot be written, for example because its disk is full."""


class WatchedStdout:
    """stdout whose write errors are `Unwritten`, unlike those of other files."""

    def __init__(self) -> None:
        self.plain: TextIO = sys.stdout

    def write(self, text: str) -> int:
        """Write text."""
        return self._watch(partial(self.plain.write, text))

    def flush(self) -> None:
        """Write what is buffered."""
        self._watch(self.plain.flush)

    def _watch[T](self, act: Callable[[], T]) -> T:
        try:
            return act()
        except BrokenPipeError:
            raise  # the reader has ended, such as `head`
        except OSError as error:
            raise Unwritten(error.errno, error.strerror) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def discard_stdout() -> None:
    """Send buffered output to /dev/null, so that the interpreter's end does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def printable(text: str) -> str:
    """Escape control characters: names and notes come from other users."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(key: bytes) -> str:
    """A key's name."""
    return printable(key.partition(b":")[2].decode("utf-8", "backslashreplace"))


def fitting(line: str, columns: int) -> str:
    """Cut a line that is redrawn to the terminal's width, between words if possible: it must not wrap."""
    if len(line) < columns:
        return line
    cut = line[: max(0, columns - 2)]
    whole = cut.rpartition(" ")[0].rstrip(" ,;:")
    return (whole if len(whole) > len(cut) // 2 else cut) + "…"


def kind_of(key: bytes) -> str:
    """A key's kind."""
    return printable(key.partition(b":")[0].decode("ascii", "replace"))


def span(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def counted(count: int, thing: str) -> str:
    """A count and its noun."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


type Shape = dict[str, Any]
type TableRow = tuple[str, ...]


def emit(shape: Mapping[str, Any]) -> None:
    """Print an object on a line of its own."""
    print(json.dumps(shape), flush=True)


def print_table(
    head: TableRow,
    rows: Iterable[TableRow],
    *,
    headless: bool,
    empty: str = "Nothing is held.",
    columns: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Print a table on a terminal, else tab-separated lines as they come.

    `columns` has options of rich's columns, by their titles. `empty` is printed for a table without rows.
    """
    if not sys.stdout.isatty():
        rest = iter(rows)
        first = list(islice(rest, 1))  # an error comes before the heading
        for row in chain(() if headless else (head,), first, rest):
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=not headless)
    for title in head:
        table.add_column(Text(title), **{"overflow": "fold", **(columns or {}).get(title, {})})
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table if table.row_count else Text(empty))


@contextmanager
def phase_bar() -> Iterator[Callable[[str, float, float | None], None]]:
    """A bar with a text, on the terminal at stderr, which goes away in the end.

    Yields the function that draws it: the text, the seconds so far, and the seconds in all, if known.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    column = Column(no_wrap=True, overflow="ellipsis")
    text = TextColumn("{task.description}", markup=False, table_column=column)
    with Progress(
        BarColumn(bar_width=12), text, console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("starting", total=None)

        def show(line: str, seconds: float, whole: float | None) -> None:
            done = seconds if whole is None else min(seconds, whole)
            bar.update(task, description=line, completed=done, total=whole)

        yield show


def name_shape(key: bytes, *, decode: bool = True) -> Shape:
    """Kind and name of a key; a name that is no UTF-8, or is not to be decoded, as base64."""
    kind, _, name = key.partition(b":")
    try:
        if decode:
            return {"kind": kind.decode(), "name": name.decode()}
    except UnicodeDecodeError:
        pass
    return {"kind": kind.decode("ascii", "replace"), "name_base64": b64encode(name).decode()}


def fields_of(record: object, names: str) -> Shape:
    """These fields of a record, with seconds rounded to milliseconds."""
    found = {name: getattr(record, name) for name in names.split()}
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in found.items()
    }


HOLDER_FIELDS = "owner lease token units slots held_for expires_in note state"
"""Of a holder, in JSON."""


class Messages:
    """Prints lines of text, or one JSON object a line. `quiet`: only errors."""

    def __init__(self, as_json: bool = False, *, quiet: bool = False) -> None:
        self.as_json: bool = as_json
        self._quiet = quiet

    @property
    def is_live(self) -> bool:
        """Whether stderr is a terminal, where lines can be redrawn."""
        if self.as_json or self._quiet:
            return False
        return sys.stderr is not None and sys.stderr.isatty()

    def show(self, event: str, text: str, **fields: Any) -> None:
        """Print a message. A closed stderr is ignored."""
        if self._quiet and event not in ("error", "lost"):
            return
        line = "dibs: " + "\n".join(map(printable, text.split("\n")))
        if self.as_json:
            line = json.dumps({"event": event, "message": text, **fields})
        self._write(line + "\n")

    def fail(self, error: DibsError, code: int) -> None:
        """Print an error, with the holders as JSON fields."""
        fields: dict[str, Any] = {}
        if self.as_json:
            fields = name_shape(error.key) if error.key else {}
            fields["holders"] = [fields_of(holder, HOLDER_FIELDS) for holder in error.holders]
            fields["ahead"] = error.position
            fields["retry_after"] = error.retry_after
        name = type(error).__name__
        self.show("error", str(error) or name, error=name, exit_code=code, **fields)

    def redraw(self, line: str) -> None:
        """Replace the line shown before; an empty one clears it."""
        self._write(f"\r\x1b[K{line}")

    def _write(self, text: str) -> None:
        try:
            if sys.stderr is not None:
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError):
            pass  # it is closed
