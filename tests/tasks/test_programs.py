"""Whole programs on real stores: kills and restarts, and signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.waiting import wait_until

pytestmark = pytest.mark.multiprocess


ALONE = """
import asyncio, signal, threading
from dibs.tasks import Tasks

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it

tasks = Tasks(shutdown_timeout="2s")

@tasks.every("1s", name="never ends", missed="latest")
def never_ends():
    threading.Event().wait()

@tasks.every("1s", name="job", missed="latest")
async def job():
    while not tasks.status()["never ends"].running:
        await asyncio.sleep(0.01)
    print("runs", flush=True)
    try:
        while tasks.running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        print("is done", flush=True)
    except asyncio.CancelledError:
        print("is cancelled", flush=True)
        raise

@tasks.add
async def beside():
    try:
        await asyncio.Event().wait()
    finally:
        print("beside ends", flush=True)

try:
    asyncio.run(tasks.run())
    print("ended")
except KeyboardInterrupt:
    print("interrupted")
"""


NOTING = """
import asyncio, json, os, sys, time
from dibs import current_lease
from dibs.tasks import Tasks

path, takes = sys.argv[1], float(sys.argv[2])
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
tasks = Tasks(shutdown_timeout="20s")

@tasks.every("0.5s", name="job", missed="all", grace="15s", max_hold=1.0)
async def job():
    tick, lease = round(tasks.status()["job"].last_tick.timestamp() * 2), current_lease()

    def note(what):
        now = time.time()
        until = now + lease.remaining  # asked later, so it isn't too much
        line = json.dumps([what, tick, now, until, os.getpid(), lease.token])
        os.write(file, f"{line}\\n".encode())

    note("start")
    await asyncio.sleep(takes)
    note("end")

asyncio.run(tasks.run())
"""


class Run(NamedTuple):
    """One line of the file that all write to."""

    what: str
    tick: int
    """In half seconds."""
    at: float
    until: float
    """So long it keeps the others out, or longer."""
    pid: int
    token: int


@contextmanager
def program(tmp_path: Path, *command: str) -> "Generator[subprocess.Popen[str]]":
    """One that runs, and is gone after the block, whatever becomes of the test."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | {"DIBS_URL": f"sqlite:///{tmp_path}/leases.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_it_runs(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line == "runs\n":
            return
    pytest.fail(f"it never ran: {process.stderr and process.stderr.read()}")


def read(path: Path) -> list[Run]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Run(*json.loads(line)) for line in lines]


def starts(path: Path) -> int:
    return sum(run.what == "start" for run in read(path))


def wait_for(path: Path, count: int) -> list[Run]:
    """Until so many runs have started; all that is written by then."""
    wait_until(lambda: starts(path) >= count, f"{count} runs", within=60)
    return read(path)


def check(runs: list[Run]) -> None:
    starts = sorted((run for run in runs if run.what == "start"), key=lambda run: run.token)
    assert [tick for tick, times in Counter(run.tick for run in starts).items() if times > 1] == []
    assert len({run.token for run in starts}) == len(starts)
    ended = {run.tick: run.at for run in runs if run.what == "end"}
    for before, after in pairwise(starts):
        # who was killed, or stood still, kept the others out for as long as it had the lock
        over = min(ended.get(before.tick, before.until), before.until)
        assert over <= after.at, "two runs overlapped"


@pytest.mark.slow
@pytest.mark.once
def test_kills_and_restarts_run_no_tick_twice_and_miss_none(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    with ExitStack() as started:

        def start(takes: float) -> "subprocess.Popen[str]":
            return started.enter_context(program(tmp_path, "-c", NOTING, str(path), str(takes)))

        def end(process: "subprocess.Popen[str]") -> None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0

        first = start(0)
        wait_for(path, 30)  # those of the grace
        end(first)
        last = max(run.tick for run in read(path))
        time.sleep(max((last + 2.1) / 2 - time.time(), 0))  # two ticks at which nobody is there
        again = start(0)
        wait_for(path, starts(path) + 3)
        end(again)
        by_pid = {process.pid: process for process in (start(0.2), start(0.2))}
        running = wait_for(path, starts(path) + 2)[-1]
        killed = by_pid.pop(running.pid)
        killed.kill()  # most likely in the middle of its run
        killed.wait()
        wait_for(path, starts(path) + 1)
        end(*by_pid.values())
    runs = read(path)
    check(runs)
    ticks = sorted(run.tick for run in runs if run.what == "start")
    assert set(range(ticks[0], last + 3)) <= set(ticks), "made up for"


@pytest.mark.parametrize(
    ("number", "last"), [(signal.SIGTERM, "ended"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_ends_it_after_what_runs(
    tmp_path: Path, number: signal.Signals, last: str
) -> None:
    """A thread that never ends does not keep the process."""
    with program(tmp_path, "-c", ALONE) as process:
        until_it_runs(process)
        process.send_signal(number)
        told, wrong = process.communicate(timeout=60)
    assert told.splitlines() == ["beside ends", "is done", last]
    assert process.returncode == 0
    assert wrong.startswith("task never ends did not end within 2 s, and is cancelled")
    assert "Traceback" not in wrong
