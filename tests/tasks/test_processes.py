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
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import leasehold
from leasehold import current_lease
from leasehold.tasks import Tasks
from leasehold.testing import ManualClock
from tests.tasks.places import eventually

ROOT = Path(__file__).resolve().parents[2]
MAX_HOLD = 2.0


class Run(NamedTuple):
    """One line of the file that all write to."""

    what: str
    tick: int
    at: float
    pid: int
    token: int


async def schedule(url: str, path: str, missed: Any, takes: float) -> None:
    """Run a task once a second until told to end, and write down each start and end."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    async with leasehold.connect(url) as client:
        tasks = Tasks(client=client, shutdown_timeout="20s")

        @tasks.every("1s", name="job", missed=missed, grace="30s", max_hold=MAX_HOLD)
        async def job() -> None:
            last = tasks.status()["job"].last_tick
            assert last is not None
            tick, token = round(last.timestamp()), current_lease().token

            def note(what: str) -> None:
                os.write(file, f"{what} {tick} {time.time()} {os.getpid()} {token}\n".encode())

            note("start")
            await asyncio.sleep(takes)
            note("end")

        await tasks.run(ready=lambda: print("ready", flush=True))


def start(url: str, path: Path, missed: str, takes: float) -> "subprocess.Popen[str]":
    """One more process; it is ready when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tasks.test_processes", url, path, missed, str(takes)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def read(path: Path) -> list[Run]:
    lines = path.read_text().splitlines() if path.exists() else []
    parts = [line.split() for line in lines]
    return [Run(w, int(t), float(a), int(p), int(k)) for w, t, a, p, k in parts]


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
        assert process.stdout is not None
        process.stdout.close()


def check(runs: list[Run]) -> None:
    starts = [run for run in runs if run.what == "start"]
    assert [tick for tick, times in Counter(run.tick for run in starts).items() if times > 1] == []
    tokens = [run.token for run in sorted(starts, key=lambda run: run.at)]
    assert tokens == sorted(set(tokens))
    ended = {run.tick: run.at for run in runs if run.what == "end"}
    for before, after in pairwise(starts):
        if before.tick in ended:
            assert ended[before.tick] <= after.at, "two runs overlapped"
        else:  # killed: it kept the others out for max_hold, counted from before it began
            assert after.at - before.at >= MAX_HOLD - 1


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.once
def test_one_winner_a_tick_whoever_is_killed(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'leases.db'}", tmp_path / "runs"
    processes = [start(url, path, "skip", 0.3) for _ in range(3)]
    by_pid = {process.pid: process for process in processes}
    running = wait_for(path, 2)[-1]
    while running.what != "start":
        running = read(path)[-1]
    killed = by_pid.pop(running.pid)
    killed.kill()  # most likely in the middle of its run
    killed.wait()
    assert killed.stdout is not None
    killed.stdout.close()
    before = sum(run.what == "start" for run in read(path))
    wait_for(path, before + 2)
    end(*by_pid.values())
    check(read(path))


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.once
def test_over_a_restart_all_ticks_are_run_and_none_twice(tmp_path: Path) -> None:
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
    clients = [leasehold.connect(url) for _ in range(2)]
    schedulers = [Tasks(client=client, clock=clock) for client in clients]

    async def job() -> None:
        ran.append(current_lease().token)

    def plain() -> None:
        ran.append(current_lease().token)

    for tasks in schedulers:
        tasks.every("60s", name="job")(job)
        tasks.every("60s", name="plain")(plain)

    def tried() -> int:
        return sum(s.won + s.lost for tasks in schedulers for s in tasks.status().values())

    async with schedulers[0], schedulers[1]:
        for turns in range(1, 4):
            clock.advance(60)
            await eventually(lambda turns=turns: tried() == 4 * turns)  # type: ignore[misc]
        await eventually(lambda: len(ran) == 6)
        assert not [s for t in schedulers for s in t.status().values() if s.skipped or s.missed]
    for client in clients:
        await client.close()


if __name__ == "__main__":
    asyncio.run(schedule(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
