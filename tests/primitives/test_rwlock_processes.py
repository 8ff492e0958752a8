"""Readers and writers of several processes that are killed and paused: a writer overlaps nothing.

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

import leasehold
import leasehold.sync
from leasehold.errors import AcquireTimeout, BackendUnavailable, Deadlock, LeaseLost
from leasehold.model import MANY
from leasehold.testing import Recorder, check, check_liveness, read

pytestmark = pytest.mark.once  # these kill processes, and take long

ROOT = Path(__file__).resolve().parents[2]
TTL = 0.6
HANDS = 3
"""Tasks or threads of each process."""
OPTIONS: dict[str, Any] = {"ttl": TTL, "wait": 20}


# -- one process ------------------------------------------------------------------------------------


class Worker:
    """Reads and writes with several hands until its time is over, and records what it sees."""

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
        async with leasehold.connect(self.url) as client:
            lock = client.rwlock("a", **OPTIONS)

            async def hand() -> None:
                while self.goes_on:
                    side, units = self.side(lock)
                    invoked = self.recorder.asked(lock.key)
                    lease = await side.acquire()
                    self.recorder.granted(lease, invoked, units=units, capacity=MANY)
                    try:
                        await asyncio.sleep(self.pause())
                        self.check(lease)
                        at = self.recorder.now()
                        if self.draw.random() < 0.5:
                            await self.change(lease)(**self.how(lease))
                            self.changed(lease, at)
                            await asyncio.sleep(self.pause())
                            self.check(lease)
                    except (LeaseLost, AcquireTimeout, Deadlock, BackendUnavailable) as error:
                        self.told[type(error).__name__] += 1
                    self.recorder.releasing(lease)
                    await lease.release()

            await asyncio.gather(*(hand() for _ in range(HANDS)))

    def run_threads(self) -> None:
        client = leasehold.sync.connect(self.url)
        lock = client.rwlock("a", **OPTIONS)

        def hand() -> None:
            while self.goes_on:
                side, units = self.side(lock)
                invoked = self.recorder.asked(lock.key)
                lease = side.acquire()
                self.recorder.granted(lease, invoked, units=units, capacity=MANY)
                try:
                    time.sleep(self.pause())
                    self.check(lease)
                    at = self.recorder.now()
                    if self.draw.random() < 0.5:
                        self.change(lease)(**self.how(lease))
                        self.changed(lease, at)
                        time.sleep(self.pause())
                        self.check(lease)
                except (LeaseLost, AcquireTimeout, Deadlock, BackendUnavailable) as error:
                    self.told[type(error).__name__] += 1
                self.recorder.releasing(lease)
                lease.release()

        threads = [threading.Thread(target=hand) for _ in range(HANDS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()

    def side(self, lock: Any) -> tuple[Any, int]:
        return (lock.read(), 1) if self.draw.random() < 0.7 else (lock.write(), MANY)

    def pause(self) -> float:
        return self.draw.random() * 0.004

    def change(self, lease: Any) -> Any:
        return lease.upgrade if lease.mode == "read" else lease.downgrade

    def how(self, lease: Any) -> dict[str, Any]:
        if lease.mode == "write":
            return {}
        return {"wait": self.draw.choice([0, 0.05, None])}

    def changed(self, lease: Any, invoked: float) -> None:
        units = MANY if lease.mode == "write" else 1
        self.recorder.resized(lease, invoked, units=units, capacity=MANY)

    def check(self, lease: Any) -> None:
        at = self.recorder.now()
        lease.ensure()
        self.recorder.believed(lease, at)
        self.recorder.renewed(lease)


# -- the tests --------------------------------------------------------------------------------------


def start(url: str, folder: Path, number: int, seconds: float) -> "subprocess.Popen[str]":
    arguments = [url, str(folder), str(number), str(seconds)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.primitives.test_rwlock_processes", *arguments],
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
        if draw.random() < 0.5:
            victim.kill()
            victim.communicate()
            supervisor.disturbed(victim.pid)
            workers[number] = start(url, folder, number, max(end - time.monotonic(), 0.5))
        else:
            victim.send_signal(signal.SIGSTOP)
            supervisor.disturbed(victim.pid)
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
@pytest.mark.parametrize("scheme", ["sqlite", "redis", "postgresql"])
def test_a_writer_overlaps_nothing_whoever_is_killed(
    tmp_path: Path, scheme: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    if scheme != "sqlite":
        url = request.getfixturevalue({"redis": "redis_url", "postgresql": "postgres_url"}[scheme])
    faults, told = harass(url, tmp_path, 6.0)
    events = read(*tmp_path.glob("history-*.jsonl"))
    grants = Counter(event.units for event in events if event.what == "granted")
    changes = Counter(event.units for event in events if event.what == "resized")
    assert faults > 3
    assert min(grants[1], grants[MANY]) > 50, grants
    assert min(changes[1], changes[MANY]) > 20, changes
    assert told["AcquireTimeout"] + told["Deadlock"] > 0, told
    assert check(events) == []
    assert check_liveness(events, 2 * TTL + 8) == []


if __name__ == "__main__":
    url, folder, number, seconds = sys.argv[1:]
    worker = Worker(url, Path(folder), int(number), float(seconds))
    if int(number) % 2:
        asyncio.run(worker.run_tasks())
    else:
        worker.run_threads()
    for name, count in worker.told.items():
        print(name, count)
