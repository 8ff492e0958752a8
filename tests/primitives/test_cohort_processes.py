"""Cohorts of several processes on one SQLite file: nobody is starved, and no death breaks exclusion.

Run as a program it is one of those processes: `WORKER URL FOLDER NUMBER SECONDS COHORT`.
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
from itertools import groupby
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.errors import LeaseLost
from dibs.testing import Event, Recorder, check, check_liveness, read
from tests.runtime.scripts import run_script

ROOT = Path(__file__).resolve().parents[2]
TTL = 0.6
HANDS = 4
"""Tasks or threads of each process."""


# -- one process ------------------------------------------------------------------------------------


class Worker:
    """Takes turns on one key with several hands until its time is over, and records what it sees."""

    def __init__(self, url: str, folder: Path, number: int, seconds: float, cohort: int) -> None:
        self.url = url
        self.number = number
        self.cohort = cohort
        self.recorder = Recorder(folder / f"history-{number}-{os.getpid()}.jsonl")
        self.end = time.monotonic() + seconds
        self.draw = random.Random(os.getpid())

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.end

    async def run_tasks(self) -> None:
        async with dibs.connect(self.url) as client:
            lock = client.lock("a", ttl=TTL, cohort=self.cohort)

            async def hand() -> None:
                while self.goes_on:
                    invoked = self.recorder.asked(lock.key)
                    lease = await lock.acquire()
                    self.recorder.granted(lease, invoked)
                    try:
                        for _ in range(self.draw.randint(0, 2)):
                            await asyncio.sleep(self.draw.random() * 0.002)
                            self.check(lease)
                    except LeaseLost:
                        pass
                    self.recorder.releasing(lease)
                    await lease.release()

            await asyncio.gather(*(hand() for _ in range(HANDS)))

    def run_threads(self) -> None:
        client = dibs.sync.connect(self.url)
        lock = client.lock("a", ttl=TTL, cohort=self.cohort)

        def hand() -> None:
            while self.goes_on:
                invoked = self.recorder.asked(lock.key)
                lease = lock.acquire()
                self.recorder.granted(lease, invoked)
                try:
                    for _ in range(self.draw.randint(0, 2)):
                        time.sleep(self.draw.random() * 0.002)
                        self.check(lease)
                except LeaseLost:
                    pass
                self.recorder.releasing(lease)
                lease.release()

        threads = [threading.Thread(target=hand) for _ in range(HANDS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()

    def check(self, lease: dibs.Lease | dibs.sync.Lease) -> None:
        at = self.recorder.now()
        lease.ensure()
        self.recorder.believed(lease, at)
        self.recorder.renewed(lease)


# -- the tests --------------------------------------------------------------------------------------


def start(folder: Path, number: int, seconds: float, cohort: int) -> "subprocess.Popen[bytes]":
    url = f"sqlite:///{folder / 'leases.db'}"
    arguments = [url, str(folder), str(number), str(seconds), str(cohort)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.primitives.test_cohort_processes", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        start_new_session=True,
    )


def history(folder: Path) -> list[Event]:
    return read(*folder.glob("history-*.jsonl"))


@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(1, 3), (0, 2), (0, 1)], ids=["tasks", "threads", "both"])
def test_no_process_is_starved_by_the_cohort_of_another(
    tmp_path: Path, numbers: tuple[int, int]
) -> None:
    """Where all hands of both always want it, turns change after at most a cohort."""
    workers = [start(tmp_path, number, 4.0, HANDS) for number in numbers]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    events = history(tmp_path)
    assert check(events) == []
    grants = sorted((e for e in events if e.what == "granted"), key=lambda e: e.token)
    began = max(min(e.at for e in grants if e.process == worker.pid) for worker in workers)
    ended = min(max(e.at for e in grants if e.process == worker.pid) for worker in workers)
    both = [e for e in grants if began < e.at < ended]
    runs = [len(list(run)) for _, run in groupby(both, key=lambda e: e.process)]
    turns = Counter(event.process for event in both)
    assert len(both) > 100, "too few to tell"
    assert max(runs) > 1, "nothing was passed on"
    assert sum(run > HANDS for run in runs) <= len(runs) / 50, Counter(runs)
    assert max(runs) <= 2 * HANDS, Counter(runs)
    assert min(turns.values()) > max(turns.values()) / 2, turns


@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.slow
def test_kills_break_nothing(tmp_path: Path) -> None:
    """Processes are killed and paused as they hold, wait and pass it on; the history is checked."""
    draw = random.Random(1)
    seconds, faults = 12.0, 0
    supervisor = Recorder(tmp_path / "history-supervisor.jsonl")
    workers = [start(tmp_path, number, seconds, 8) for number in range(3)]
    end = time.monotonic() + seconds
    while time.monotonic() < end - 1:
        time.sleep(draw.uniform(0.1, 0.4))
        number = draw.randrange(3)
        victim = workers[number]
        if victim.poll() is not None:
            break
        faults += 1
        if draw.random() < 0.5:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            supervisor.disturbed(victim.pid)
            workers[number] = start(tmp_path, number, max(end - time.monotonic(), 0.5), 8)
        else:
            victim.send_signal(signal.SIGSTOP)
            supervisor.disturbed(victim.pid)
            time.sleep(draw.choice((0.5, 1.2, 2.0)) * TTL)
            victim.send_signal(signal.SIGCONT)
            supervisor.disturbed(victim.pid)
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    supervisor.close()
    events = history(tmp_path)
    grants = [event for event in events if event.what == "granted"]
    assert len(grants) > 200
    assert faults > 10
    assert check(events) == []
    assert check_liveness(events, 2 * TTL + 5) == []


@pytest.mark.multiprocess
def test_a_forked_child_passes_nothing_on(tmp_path: Path) -> None:
    """The parent holds, others of it wait in line; the child's copies of these do nothing."""
    lines = run_script(
        """
        import os, sys, threading, time
        from dibs.sync import connect

        client = connect(sys.argv[1])
        lock = client.lock("a", cohort=4)
        lease = lock.acquire()
        got = []
        thread = threading.Thread(target=lambda: got.append(lock.acquire()))
        thread.start()
        while not any(c._line for c in client.hub.thread_runtime().cohorts.values()):
            time.sleep(0.001)
        pid = os.fork()
        if not pid:
            print(lease.reason, lease.release(), lock.locked(), flush=True)
            print(lock.try_acquire(), client.hub.thread_runtime().cohorts, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(lease.lost, lease.release(), flush=True)
        thread.join(10)
        print(got[0].token - lease.token, got[0].lost, got[0].release(), lock.locked())
        client.close()
        """,
        f"sqlite:///{tmp_path / 'leases.db'}",
    )
    assert lines == ["closed False True", "None {}", "False True", "1 False True False"]


def test_a_closed_loop_keeps_nothing(tmp_path: Path) -> None:
    """The loop ends with one who holds and some in line; the keys are free for others soon."""
    lines = run_script(
        """
        import asyncio, logging, os, sys, time
        import dibs, dibs.sync

        logging.getLogger("dibs").disabled = True  # it tells of the loss
        client = dibs.connect(sys.argv[1])

        async def main():
            lock = client.lock("a", ttl=1, cohort=4)
            lease = await asyncio.ensure_future(lock.acquire())
            tasks = [asyncio.ensure_future(lock.acquire()) for _ in range(6)]
            for task in tasks:
                task._log_destroy_pending = False  # they are, on purpose
            await asyncio.sleep(0.05)
            await lease.release()  # the next has it, and will never know

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop._ready.clear()
        loop.close()
        other = dibs.sync.connect(sys.argv[1])
        began = time.monotonic()
        lease = other.lock("a").acquire(wait=20)
        print(time.monotonic() - began < 12, client.hub.keeper.leases(), lease.release())
        os._exit(0)
        """,
        f"sqlite:///{tmp_path / 'leases.db'}",
    )
    assert lines == ["True [] True"]


if __name__ == "__main__":
    url, folder, number, seconds, cohort = sys.argv[1:]
    worker = Worker(url, Path(folder), int(number), float(seconds), int(cohort))
    if worker.number % 2:
        asyncio.run(worker.run_tasks())
    else:
        worker.run_threads()
