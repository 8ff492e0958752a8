"""`dibs verify`: kill and pause processes that use a store, and tell whether it kept its word."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.exits import SIGNALLED
from dibs.cli.signals import Interrupted
from dibs.cli.voice import Voice
from dibs.cli.watching import watching

if TYPE_CHECKING:
    from dibs.testing import Torture, TorturePlan, Verdict

VIOLATED = 1
INCONCLUSIVE = 2


@click.command()
@click.argument("where", required=False, metavar="[URL]")
@click.option("--seconds", metavar="TIME", help="Go on for so long [60s; with --cycles 1h].")
@click.option("--cycles", type=int, metavar="N", help="End once so many cycles are done.")
@click.option("--processes", type=int, default=6, metavar="N", help="With so many processes [6].")
@click.option("--tasks", type=int, default=4, metavar="N", help="So many in each process [4].")
@click.option("--primitives", metavar="NAMES", help="Only these, such as lock,semaphore [all].")
@click.option(
    "--locks", type=int, metavar="N", help="On so many locks [one resource for each task]."
)
@click.option("--ttl", default="1s", metavar="TIME", help="The leases' ttl [1s].")
@click.option("--seed", type=int, metavar="N", help="Draw the same faults as another run did.")
@options.store
@options.as_json
def verify(
    where: str | None,
    seconds: str | None,
    cycles: int | None,
    processes: int,
    tasks: int,
    primitives: str | None,
    locks: int | None,
    ttl: str,
    seed: int | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Try whether the store at URL keeps leases exclusive while their holders are killed and paused.

    Starts processes on this machine that contend for leases under random names of their own, kills
    and pauses them, checks what every one of them saw, and says what was tried, what was found and
    what it means. A URL with a password is better kept in DIBS_URL or the settings file,
    where `ps` can't see it.

    Exits with 0 if nothing was violated, 1 if something was, 2 if the trial says nothing.
    Ctrl-C ends it with a verdict on what was done.
    """
    if where and url:
        raise click.UsageError("the URL is given twice")
    voice = Voice(as_json)
    size: dict[str, Any] = {
        "seconds": seconds,
        "cycles": cycles,
        "processes": processes,
        "tasks": tasks,
    }
    if primitives is not None:
        size["primitives"] = tuple(each.strip() for each in primitives.split(",") if each.strip())
    plan = _plan(**size, locks=locks, ttl=ttl, seed=seed)
    verdict, signum = _run(options.full_url(where or url), plan, voice)
    if as_json:
        from dibs.cli.output import emit

        emit(verdict.shape())
    else:
        print(verdict)
    return _code(verdict, signum)


def _plan(**wanted: Any) -> "TorturePlan":
    from dibs.testing import TorturePlan

    try:
        return TorturePlan(**wanted)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _run(url: str, plan: "TorturePlan", voice: Voice) -> tuple["Verdict", int]:
    """The verdict, and the signal that ended it early."""
    from dibs.testing import Torture

    logging.getLogger("dibs").addHandler(logging.NullHandler())
    with watching(voice) as watch:
        try:
            torture = Torture(url, plan, progress=watch)
        except (ValueError, ImportError) as error:
            raise click.UsageError(str(error)) from error
        with _signals(torture) as heard:
            return torture.run(), heard[0] if heard else 0


@contextmanager
def _signals(torture: "Torture") -> Iterator[list[int]]:
    """End it at a signal, and tell which came."""
    heard: list[int] = []

    def hear(signum: int, frame: FrameType | None) -> None:
        if not torture.under_way:
            raise Interrupted(signum)
        heard.append(signum)
        torture.stop()

    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in ours}
    for signum, handler in before.items():
        if handler != signal.SIG_IGN:  # as after `nohup`
            signal.signal(signum, hear)
    try:
        yield heard
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _code(verdict: "Verdict", signum: int) -> int:
    if verdict.violations:
        return VIOLATED
    if signum:
        return SIGNALLED + signum
    return 0 if verdict.outcome == "clean" else INCONCLUSIVE
