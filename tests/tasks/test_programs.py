"""Whole programs on real stores: kills and restarts, signals, and the lifespan of an application."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import dibs
import dibs.sync
from dibs import current_lease
from dibs.tasks import Tasks
from dibs.testing import ManualClock
from tests.pages import blocks, run
from tests.tasks.conftest import eventually

pytestmark = pytest.mark.multiprocess


ALONE = """
import asyncio
import signal
from dibs.tasks import Tasks

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it

tasks = Tasks()

@tasks.every("1s", name="job", missed="latest")
async def job():
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


APPLICATION = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from dibs.tasks import Tasks

tasks = Tasks(shutdown_timeout=0.2)

@tasks.every("1s", name="job", missed="latest")
async def job():
    import asyncio
    print("runs", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("is cancelled", flush=True)

@asynccontextmanager
async def lifespan(app):
    async with tasks:
        yield
    print("stopped", flush=True)

app = FastAPI(lifespan=lifespan)
"""

THREAD = """
import asyncio, threading
from dibs.tasks import Tasks

tasks = Tasks(shutdown_timeout=0.1)

@tasks.every("1s", name="job", missed="latest")
def job():
    print("runs", flush=True)
    threading.Event().wait()

asyncio.run(tasks.run())
print("ended")
"""

NOTING = """
import asyncio, os, sys, time
from dibs import current_lease
from dibs.tasks import Tasks

path, takes = sys.argv[1], float(sys.argv[2])
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
tasks = Tasks(shutdown_timeout="20s")

@tasks.every("1s", name="job", missed="all", grace="30s", max_hold=2.0)
async def job():
    tick, lease = round(tasks.status()["job"].last_tick.timestamp()), current_lease()

    def note(what):
        now = time.time()
        until = now + lease.remaining  # asked later, so it isn't too much
        os.write(file, f"{what} {tick} {now} {until} {os.getpid()} {lease.token}\\n".encode())

    note("start")
    await asyncio.sleep(takes)
    note("end")

asyncio.run(tasks.run())
"""


class Run(NamedTuple):
    """One line of the file that all write to."""

    what: str
    tick: int
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
    parts = [line.split() for line in lines]
    return [Run(w, int(t), float(a), float(u), int(p), int(k)) for w, t, a, u, p, k in parts]


def starts(path: Path) -> int:
    return sum(run.what == "start" for run in read(path))


def wait_for(path: Path, count: int) -> list[Run]:
    """Until so many runs have started; all that is written by then."""
    end = time.monotonic() + 60
    while starts(path) < count:
        assert time.monotonic() < end, "they never ran"
        time.sleep(0.02)
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
        while time.time() < last + 2.1:  # two ticks at which nobody is there
            time.sleep(0.05)
        again = start(0)
        wait_for(path, starts(path) + 3)
        end(again)
        by_pid = {process.pid: process for process in (start(0.3), start(0.3))}
        running = wait_for(path, starts(path) + 2)[-1]
        while running.what != "start":
            running = read(path)[-1]
        killed = by_pid.pop(running.pid)
        killed.kill()  # most likely in the middle of its run
        killed.wait()
        wait_for(path, starts(path) + 1)
        end(*by_pid.values())
    runs = read(path)
    check(runs)
    ticks = sorted(run.tick for run in runs if run.what == "start")
    assert set(range(ticks[0], last + 3)) <= set(ticks), "made up for"


@pytest.mark.parametrize("server", ["redis_url", "postgres_url"])
async def test_on_a_server_too(server: str, request: pytest.FixtureRequest) -> None:
    url, clock = request.getfixturevalue(server), ManualClock()
    ran: list[int] = []
    clients = [dibs.connect(url) for _ in range(2)]
    schedulers = [Tasks(client=client, clock=clock) for client in clients]

    async def job() -> None:
        ran.append(current_lease().token)

    def plain() -> None:
        ran.append(current_lease().token)

    for tasks in schedulers:
        tasks.every("60s", name="job")(job)
        tasks.every("60s", name="plain")(plain)

    def all_are_over(turns: int) -> bool:
        """A run that goes on would let the next tick be skipped."""
        seen = [status for tasks in schedulers for status in tasks.status().values()]
        assert not any(status.skipped or status.missed for status in seen), seen
        tried = sum(status.won + status.elsewhere for status in seen)
        return tried == 4 * turns and not any(status.running for status in seen)

    async with schedulers[0], schedulers[1]:
        for turns in range(1, 4):
            clock.advance(60)
            await eventually(partial(all_are_over, turns))
    assert len(ran) == 6
    for client in clients:
        await client.close()


@pytest.mark.parametrize(
    ("number", "last"), [(signal.SIGTERM, "ended"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_ends_it_after_what_runs(
    tmp_path: Path, number: signal.Signals, last: str
) -> None:
    with program(tmp_path, "-c", ALONE) as process:
        until_it_runs(process)
        process.send_signal(number)
        told, wrong = process.communicate(timeout=60)
    assert told.splitlines() == ["beside ends", "is done", last]
    assert (process.returncode, wrong) == (0, "")


def test_in_an_application_s_lifespan(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    quiet = ("--port", "0", "--log-level", "warning")
    with program(tmp_path, "-m", "uvicorn", "app:app", *quiet) as process:
        until_it_runs(process)
        process.send_signal(signal.SIGTERM)
        told, wrong = process.communicate(timeout=60)
    assert told.splitlines() == ["is cancelled", "stopped"]
    assert "Traceback" not in wrong
    assert "did not end within 0.2 s" in wrong


def test_a_thread_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    with program(tmp_path, "-c", THREAD) as process:
        until_it_runs(process)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "ended\n"
    assert process.returncode == 0


@pytest.mark.multiprocess
def test_the_page_s_example_works(tmp_path: Path) -> None:
    told = run(blocks("tasks.md")[0], tmp_path)
    assert "polled, with token" in told
    assert re.search(r"^poll every 1 s won [1-9]", told, re.MULTILINE), told
    assert "billing/__main__:report cron 0 3 * * * (Europe/Berlin) won" in told
