"""Real processes on real stores: one winner a tick, whoever is killed, and over restarts.

Run as a program it is one of those processes: `SCHEDULER URL FILE MISSED SECONDS_PER_RUN`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dibs
from dibs import current_lease
from dibs.tasks import Tasks
from dibs.testing import ManualClock
from tests.tasks.places import eventually

ROOT = Path(__file__).resolve().parents[2]
MAX_HOLD = 2.0


class Run(NamedTuple):
    """One line of the file that all write to."""

    what: str
    tick: int
    at: float
    until: float
    """So long it keeps the others out, or longer."""
    pid: int
    token: int


async def schedule(url: str, path: str, missed: Any, takes: float) -> None:
    """Run a task once a second until told to end, and write down each start and end."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    async with dibs.connect(url) as client:
        tasks = Tasks(client=client, shutdown_timeout="20s")

        @tasks.every("1s", name="job", missed=missed, grace="30s", max_hold=MAX_HOLD)
        async def job() -> None:
            last = tasks.status()["job"].last_tick
            assert last is not None
            tick, lease = round(last.timestamp()), current_lease()

            def note(what: str) -> None:
                now = time.time()
                until = now + lease.remaining  # asked later, so it isn't too much
                line = f"{what} {tick} {now} {until} {os.getpid()} {lease.token}\n"
                os.write(file, line.encode())

            note("start")
            await asyncio.sleep(takes)
            note("end")

        await tasks.run(ready=lambda: print("ready", flush=True))


type Start = Callable[[str, Path, str, float], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Generator[Start]:
    """Starts one more process, which is ready then; none of them outlives the test."""
    with ExitStack() as started:
        yield lambda *about: started.enter_context(_started(*about))


@contextmanager
def _started(url: str, path: Path, missed: str, takes: float) -> "Generator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tasks.test_processes", url, path, missed, str(takes)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def read(path: Path) -> list[Run]:
    lines = path.read_text().splitlines() if path.exists() else []
    parts = [line.split() for line in lines]
    return [Run(w, int(t), float(a), float(u), int(p), int(k)) for w, t, a, u, p, k in parts]


def wait_for(path: Path, count: int, what: str = "start") -> list[Run]:
    """Until so many runs have started (or ended); all that is written by then."""
    end = time.monotonic() + 60
    while sum(run.what == what for run in read(path)) < count:
        assert time.monotonic() < end, "they never ran"
        time.sleep(0.02)
    return read(path)


def end(*processes: "subprocess.Popen[str]") -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        assert process.wait(60) == 0, "SIGTERM ends it cleanly"


def check(runs: list[Run]) -> None:
    starts = sorted((run for run in runs if run.what == "start"), key=lambda run: run.token)
    assert [tick for tick, times in Counter(run.tick for run in starts).items() if times > 1] == []
    assert len({run.token for run in starts}) == len(starts)
    ended = {run.tick: run.at for run in runs if run.what == "end"}
    for before, after in pairwise(starts):
        # who was killed, or stood still, kept the others out for as long as it had the lock
        over = min(ended.get(before.tick, before.until), before.until)
        assert over <= after.at, "two runs overlapped"


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.once
def test_one_winner_a_tick_whoever_is_killed(start: Start, tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'leases.db'}", tmp_path / "runs"
    processes = [start(url, path, "skip", 0.3) for _ in range(3)]
    by_pid = {process.pid: process for process in processes}
    running = wait_for(path, 2)[-1]
    while running.what != "start":
        running = read(path)[-1]
    killed = by_pid.pop(running.pid)
    killed.kill()  # most likely in the middle of its run
    killed.wait()
    before = sum(run.what == "start" for run in read(path))
    wait_for(path, before + 2)
    end(*by_pid.values())
    check(read(path))


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.once
def test_over_a_restart_all_ticks_are_run_and_none_twice(start: Start, tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'leases.db'}", tmp_path / "runs"
    first = start(url, path, "all", 0)
    wait_for(path, 30)
    end(first)
    last = max(run.tick for run in read(path))
    while time.time() < last + 2.5:  # two ticks at which nobody is there
        time.sleep(0.05)
    second = start(url, path, "all", 0)
    other = start(url, path, "all", 0)
    wait_for(path, len(read(path)) // 2 + 3)
    end(second, other)
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


if __name__ == "__main__":
    asyncio.run(schedule(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
