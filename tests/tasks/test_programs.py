"""Whole programs on real stores: kills and restarts, and signals."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.processes import Cli, end
from tests.how_to.programs import line_with
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.multiprocess

PYTHON = [sys.executable, "-c"]

ALONE = """
import asyncio, signal, threading
from dibs.tasks import Tasks

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it

tasks = Tasks(shutdown_timeout="1s")

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


class Diary:
    """The file that all runs write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def runs(self) -> list[Run]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [Run(*json.loads(line)) for line in lines]

    @property
    def starts(self) -> list[Run]:
        return [run for run in self.runs if run.what == "start"]

    def wait_for(self, more: int) -> None:
        """Until so many more runs have started."""
        count = len(self.starts) + more
        wait_until(lambda: len(self.starts) >= count, f"{count} runs", within=60)

    def check(self) -> None:
        starts = sorted(self.starts, key=lambda run: run.token)
        ticks = Counter(run.tick for run in starts)
        assert [tick for tick, times in ticks.items() if times > 1] == []
        assert len({run.token for run in starts}) == len(starts)
        ended = {run.tick: run.at for run in self.runs if run.what == "end"}
        for before, after in pairwise(starts):
            # who was killed, or stood still, kept the others out for as long as it had the lock
            over = min(ended.get(before.tick, before.until), before.until)
            assert over <= after.at, "two runs overlapped"


@pytest.mark.slow
@pytest.mark.once
def test_kills_and_restarts_run_no_tick_twice_and_miss_none(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "runs")
    with Cli(tmp_path) as programs:

        def start(takes: float) -> "subprocess.Popen[str]":
            return programs.start(NOTING, diary.path, str(takes), program=PYTHON)

        def stop(process: "subprocess.Popen[str]") -> None:
            process.terminate()
            assert process.wait(60) == 0

        first = start(0)
        diary.wait_for(30)  # those of the grace
        stop(first)
        last = max(run.tick for run in diary.runs)
        time.sleep(max((last + 2.1) / 2 - time.time(), 0))  # two ticks at which nobody is there
        again = start(0)
        diary.wait_for(3)
        stop(again)
        by_pid = {process.pid: process for process in (start(0.2), start(0.2))}
        diary.wait_for(2)
        killed = by_pid.pop(diary.runs[-1].pid)
        killed.kill()  # most likely in the middle of its run
        killed.wait()
        diary.wait_for(1)
        stop(*by_pid.values())
    diary.check()
    ticks = sorted(run.tick for run in diary.starts)
    assert set(range(ticks[0], last + 3)) <= set(ticks), "made up for"


@pytest.mark.parametrize(
    ("number", "last"), [(signal.SIGTERM, "ended"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_ends_it_after_what_runs(
    tmp_path: Path, number: signal.Signals, last: str
) -> None:
    """A thread that never ends does not keep the process."""
    with Cli(tmp_path) as programs:
        process = programs.start(ALONE, program=PYTHON)
        line_with("runs", process)
        process.send_signal(number)
        code, told, wrong = end(process)
    assert (code, told.splitlines()) == (0, ["beside ends", "is done", last])
    assert wrong.startswith("task never ends did not end within 1 s, and is cancelled")
    assert "Traceback" not in wrong
