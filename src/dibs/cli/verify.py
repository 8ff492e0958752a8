"""`dibs verify`: kill and pause processes that use a store, and check that it kept its promises."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.exits import SIGNALLED
from dibs.cli.output import Messages, emit, phase_bar, span
from dibs.cli.signals import Interrupted

if TYPE_CHECKING:
    from dibs.testing import Torture, TorturePlan, TortureProgress, Verdict

VIOLATED = 1
INCONCLUSIVE = 2


@click.command(
    epilog=options.examples(
        "dibs verify redis://cache", "dibs verify --seconds 5m --primitives lock"
    )
)
@options.url_argument
@click.option(
    "--seconds",
    metavar="TIME",
    help="Time for the faults and the calm after them. Cleanup takes up to 45 s more "
    "[60s; with --cycles 1h].",
)
@click.option("--cycles", type=int, metavar="N", help="Stop after N cycles.")
@click.option(
    "--processes", type=int, default=6, metavar="N", help="Number of processes, 2 to 64 [6]."
)
@click.option(
    "--tasks", type=int, default=4, metavar="N", help="Tasks or threads in each process [4]."
)
@click.option(
    "--primitives",
    metavar="NAMES",
    help="Only these, separated by commas: lock, semaphore, rwlock, tasklock, leader, allof [all].",
)
@click.option("--locks", type=int, metavar="N", help="Number of locks [one resource per task].")
@click.option("--ttl", default="1s", metavar="TIME", help="Ttl of the leases [1s].")
@click.option("--seed", type=int, metavar="N", help="Draw the same faults as an earlier run.")
@options.store
@options.as_json
def verify(as_json: bool, primitives: str | None, **wanted: Any) -> int:
    """Kill and pause processes that use a store, and check that leases stay exclusive.

    The processes run on this machine and use random names of their own. At the end `verify` reports what
    it tried, what it found and what that means. Put a URL with a password into DIBS_URL or the
    settings file, where `ps` does not show it.

    Exit codes: 0 no violation, 1 violations, 2 inconclusive. Ctrl-C ends it early, with a verdict.
    """
    messages = Messages(as_json)
    if primitives is not None:
        wanted["primitives"] = tuple(each.strip() for each in primitives.split(",") if each.strip())
    plan = _plan(**wanted)
    full = options.full_url()
    if not as_json:
        messages.show("progress", _length(plan))
    verdict, signum = _run(full, plan, messages)
    if as_json:
        emit(verdict.shape())
    else:
        print(verdict)
    return _code(verdict, signum)


def _length(plan: "TorturePlan") -> str:
    """How long it takes at most, for people."""
    faults, most = f"{span(plan.seconds)} of faults", span(plan.seconds + plan.afterwards)
    if plan.cycles is not None:
        faults = f"faults until {plan.cycles:,} cycles are done"
    return f"at most {most}: {faults}, then checking and cleaning up"


def _plan(**wanted: Any) -> "TorturePlan":
    from dibs.testing import TorturePlan

    try:
        return TorturePlan(**wanted)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _run(url: str, plan: "TorturePlan", messages: Messages) -> tuple["Verdict", int]:
    """The verdict, and the signal that ended it early, if any."""
    from dibs.testing import Torture

    logging.getLogger("dibs").addHandler(logging.NullHandler())
    with watching(messages, plan) as watch:
        try:
            torture = Torture(url, plan, progress=watch)
        except (ValueError, ImportError) as error:
            raise click.UsageError(str(error)) from error
        with _signals(torture) as caught:
            return torture.run(), caught[0] if caught else 0


@contextmanager
def _signals(torture: "Torture") -> Iterator[list[int]]:
    """Stop at a signal; yields the signals that came."""
    caught: list[int] = []

    def on_signal(signum: int, frame: FrameType | None) -> None:
        if not torture.under_way:
            raise Interrupted(signum)
        caught.append(signum)
        torture.stop()

    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in ours}
    for signum, handler in before.items():
        if handler != signal.SIG_IGN:  # as after `nohup`
            signal.signal(signum, on_signal)
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _code(verdict: "Verdict", signum: int) -> int:
    if verdict.violations:
        return VIOLATED
    if signum:
        return SIGNALLED + signum
    return 0 if verdict.outcome == "clean" else INCONCLUSIVE


_PLAIN = 5.0
"""Seconds between two lines where nothing can be redrawn."""

type Watch = Callable[["TortureProgress"], None]


@contextmanager
def watching(messages: Messages, plan: "TorturePlan") -> Iterator[Watch]:
    """Yields the function that shows progress."""
    if not messages.is_live:
        yield _lines(messages, plan)
        return
    with phase_bar() as show:
        yield lambda progress: show(
            _line(progress, plan), progress.seconds, progress.of + plan.afterwards
        )


def _lines(messages: Messages, plan: "TorturePlan") -> Watch:
    told_at = time.monotonic()

    def watch(progress: "TortureProgress") -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at >= _PLAIN:
            told_at = now
            messages.show("progress", _line(progress, plan), **_fields(progress))

    return watch


def _line(progress: "TortureProgress", plan: "TorturePlan") -> str:
    """The phase, how long it takes, and what was done so far."""
    limit = f"{progress.of:.0f}"
    if progress.doing in ("checking", "cleaning up"):
        limit = f"at most {progress.of + plan.afterwards:.0f}"
    faults = progress.kills + progress.pauses
    return (
        f"{progress.doing}, {progress.seconds:.0f} of {limit} s: "
        f"{progress.cycles:,} cycles, {faults} faults, {progress.struck} hit a holder"
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
