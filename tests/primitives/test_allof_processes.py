"""Processes that take several at once, in any order, and are killed and paused: nothing overlaps, all go on.

Run as a program it is one of those processes: `WORKER URL FOLDER NUMBER SECONDS`.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs.errors import LeaseLost
from dibs.testing import Recorder, check, check_liveness, read

pytestmark = pytest.mark.once  # these kill processes, and take long

ROOT = Path(__file__).resolve().parents[2]
TTL = 0.6
HANDS = 3
"""Tasks or threads of each process."""
NAMES = "abcde"
CAPACITY = 2
OPTIONS: dict[str, Any] = {"ttl": TTL, "wait": 20}


# -- one process ------------------------------------------------------------------------------------


class Worker:
    """Takes some at once with several hands until its time is over, and records what it sees."""

    def __init__(self, url: str, folder: Path, number: int, seconds: float) -> None:
        self.url = url
        self.recorder = Recorder(folder / f"history-{number}-{os.getpid()}.jsonl")
        self.end = time.monotonic() + seconds
        self.draw = random.Random(os.getpid())
        self.told: Counter[str] = Counter()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.end

    async def run_tasks(self) -> None:
        async with dibs.connect(self.url) as client:

            async def hand() -> None:
                while self.goes_on:
                    wanted = self.wanted(client)
                    both = dibs.AllOf(*wanted, wait=20)
                    invoked = [self.recorder.asked(each.key) for each in wanted]
                    leases = await both.acquire()
                    self.granted(leases, invoked)
                    await asyncio.sleep(self.draw.random() * 0.004)
                    self.check(leases)
                    await leases.release()

            await asyncio.gather(*(hand() for _ in range(HANDS)))

    def run_threads(self) -> None:
        client = dibs.sync.connect(self.url)

        def hand() -> None:
            while self.goes_on:
                wanted = self.wanted(client)
                both = dibs.sync.AllOf(*wanted, wait=20)
                invoked = [self.recorder.asked(each.key) for each in wanted]
                leases = both.acquire()
                self.granted(leases, invoked)
                time.sleep(self.draw.random() * 0.004)
                self.check(leases)
                leases.release()

        threads = [threading.Thread(target=hand) for _ in range(HANDS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()

    def wanted(self, client: Any) -> list[Any]:
        """Two or three of the names, in any order; one is a semaphore."""
        return [
            client.semaphore(name, CAPACITY, **OPTIONS)
            if name == "e"
            else client.lock(name, **OPTIONS)
            for name in self.draw.sample(NAMES, self.draw.choice([2, 3]))
        ]

    def granted(self, leases: Any, invoked: list[float]) -> None:
        self.told["granted"] += 1
        for lease, at in zip(leases, invoked, strict=True):
            capacity = CAPACITY if lease.key.startswith(b"semaphore:") else 1
            self.recorder.granted(lease, at, units=1, capacity=capacity)

    def check(self, leases: Any) -> None:
        """Still held, by its own account; from here on they are given up."""
        at = self.recorder.now()
        try:
            leases.ensure()
        except LeaseLost:
            self.told["lost"] += 1
        else:
            for lease in leases:
                self.recorder.believed(lease, at)
        for lease in leases:
            self.recorder.releasing(lease)


# -- the tests --------------------------------------------------------------------------------------


def start(url: str, folder: Path, number: int, seconds: float) -> "subprocess.Popen[str]":
    arguments = [url, str(folder), str(number), str(seconds)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.primitives.test_allof_processes", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )


def harass(url: str, folder: Path, seconds: float) -> tuple[int, Counter[str]]:
    """Let four processes work, kill and pause them; how many faults, and what the survivors told."""
    draw, faults = random.Random(1), 0
    supervisor = Recorder(folder / "history-supervisor.jsonl")
    workers = [start(url, folder, number, seconds) for number in range(4)]
    end = time.monotonic() + seconds
    while time.monotonic() < end - 1:
        time.sleep(draw.uniform(0.2, 0.5))
        number = draw.randrange(4)
        victim = workers[number]
        if victim.poll() is not None:
            break
        faults += 1
        supervisor.disturbed(victim.pid)
        if draw.random() < 0.5:
            victim.kill()
            victim.communicate()
            workers[number] = start(url, folder, number, max(end - time.monotonic(), 0.5))
        else:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(draw.choice((0.5, 1.2, 2.0)) * TTL)
            victim.send_signal(signal.SIGCONT)
        supervisor.disturbed(victim.pid)
    told: Counter[str] = Counter()
    for worker in workers:
        out, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        for line in out.splitlines():
            name, _, count = line.partition(" ")
            told[name] += int(count)
    supervisor.close()
    return faults, told


@pytest.mark.multiprocess
@pytest.mark.slow
def test_whoever_is_killed_nothing_overlaps_and_all_go_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    faults, told = harass(url, tmp_path, 5.0)
    events = read(*tmp_path.glob("history-*.jsonl"))
    grants = Counter(event.key for event in events if event.what == "granted")
    assert faults > 2
    assert told["granted"] > 20, told
    assert len(grants) == len(NAMES)
    assert check(events) == []
    assert check_liveness(events, 3 * (2 * TTL + 4)) == []


if __name__ == "__main__":
    url, folder, number, seconds = sys.argv[1:]
    worker = Worker(url, Path(folder), int(number), float(seconds))
    if int(number) % 2:
        asyncio.run(worker.run_tasks())
    else:
        worker.run_threads()
    for name, count in worker.told.items():
        print(name, count)
