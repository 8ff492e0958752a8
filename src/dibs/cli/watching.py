"""Progress of `dibs verify`: a bar on a terminal, else a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dibs.cli.voice import Voice

if TYPE_CHECKING:
    from dibs.testing import TortureProgress

_PLAIN = 5.0
"""Seconds between two lines where nothing can be redrawn."""

type Watch = Callable[["TortureProgress"], None]


@contextmanager
def watching(voice: Voice) -> Iterator[Watch]:
    """Yields the function that shows progress."""
    if voice.is_live:
        with _bar() as watch:
            yield watch
    else:
        yield _lines(voice)


def _lines(voice: Voice) -> Watch:
    told_at = time.monotonic()

    def watch(progress: "TortureProgress") -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at >= _PLAIN:
            told_at = now
            voice.say("progress", _line(progress), **_fields(progress))

    return watch


@contextmanager
def _bar() -> Iterator[Watch]:
    """Rich is imported here only, on a terminal. The bar goes away in the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def watch(progress: "TortureProgress") -> None:
            done = min(progress.seconds, progress.of)
            bar.update(task, total=progress.of, completed=done, description=_line(progress))

        yield watch


def _line(progress: "TortureProgress") -> str:
    if progress.doing in ("checking", "cleaning up"):
        phase = f"{progress.doing}, {progress.seconds:.0f} s so far"
    else:
        phase = f"{progress.doing}, {progress.seconds:.0f} of {progress.of:.0f} s"
    return (
        f"{phase}: "
        f"{progress.cycles:,} cycles, {progress.kills} kills, {progress.pauses} pauses, "
        f"{progress.struck} hit a holder"
    )


def _fields(progress: "TortureProgress") -> dict[str, object]:
    return {
        "doing": progress.doing,
        "seconds": round(progress.seconds, 1),
        "of": progress.of,
        "cycles": progress.cycles,
        "kills": progress.kills,
        "pauses": progress.pauses,
        "holders_hit": progress.struck,
    }
