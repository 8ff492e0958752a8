"""Waiters and holders are killed and paused, on Redis: our lock beside redis-py's under the same plan.

    python -m benchmarks.churn

redis-py's lock polls: no order, and nothing to be cleaned up when a waiter dies. Ours keeps an order, which
must not cost more than half of the holds, or more than twice the longest waits.
"""

import argparse
import os
import random
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis
from redis.exceptions import LockError

from dibs.errors import DibsError
from dibs.sync import connect
from tests.servers.redis import RedisServer

HELD = 0.01
"""Seconds that a worker holds the lock, and pauses afterwards."""
STRIKES = 1.5
"""Kills and pauses each second."""

_FORK = get_context("fork")  # a worker is there at once, with all that it imports

type Cycle = Callable[[Callable[[], None]], None]
"""Acquire, call when it is held, release."""


# ---- what a worker does ---------------------------------------------------------------------------


def _dibs(url: str, ttl: float) -> Cycle:
    lock = connect(url).lock("churn", ttl=ttl)

    def cycle(held: Callable[[], None]) -> None:
        with suppress(DibsError), lock:
            held()

    return cycle


def _redis_py(url: str, ttl: float) -> Cycle:
    client = Redis.from_url(url)

    def cycle(held: Callable[[], None]) -> None:
        with suppress(LockError), client.lock("churn", timeout=ttl):
            held()

    return cycle


CONTENDERS = {"redis-py": _redis_py, "dibs": _dibs}


def _work(contender: str, url: str, ttl: float, log: Path) -> None:
    """Until it is killed: a line in the log for each beginning of a wait, and for its end."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str) -> None:
        os.write(file, f"{os.getpid()} {what} {time.monotonic()}\n".encode())

    def held() -> None:
        note("holds")
        time.sleep(HELD)

    cycle = CONTENDERS[contender](url, ttl)
    while True:
        note("waits")
        cycle(held)
        time.sleep(HELD)


# ---- the plan -------------------------------------------------------------------------------------


def plan(arguments: Namespace) -> Iterator[tuple[float, int, float]]:
    """What happens when, and to which worker: seconds of a pause, or 0 for a kill. The same each time."""
    chance = random.Random(arguments.seed)
    at = 0.0
    while (at := at + chance.expovariate(STRIKES)) < arguments.seconds:
        pause = chance.uniform(0.3, 2.0) * arguments.ttl if chance.random() < 0.5 else 0.0
        yield at, chance.randrange(arguments.workers), pause


class Crew:
    """The workers of one contender."""

    def __init__(self, contender: str, url: str, arguments: Namespace, log: Path) -> None:
        self._target = (contender, url, arguments.ttl, log)
        self._workers = [self._new() for _ in range(arguments.workers)]
        self._wakes: list[tuple[float, int]] = []
        """When a paused worker goes on, and its process id."""

    def _new(self) -> int:
        worker = _FORK.Process(target=_work, args=self._target, daemon=True)
        worker.start()
        assert worker.pid is not None
        return worker.pid

    def follow(self, strikes: Iterator[tuple[float, int, float]], seconds: float) -> None:
        """Strike at the given times; return after so many seconds."""
        began = time.monotonic()
        for at, which, pause in [*strikes, (seconds, -1, 0.0)]:
            while self._wakes and min(self._wakes)[0] <= began + at:
                self._resume_first()
            time.sleep(max(began + at - time.monotonic(), 0.0))
            if which >= 0:
                self._strike(which, pause)

    def _resume_first(self) -> None:
        wake = min(self._wakes)
        self._wakes.remove(wake)
        time.sleep(max(wake[0] - time.monotonic(), 0.0))
        os.kill(wake[1], signal.SIGCONT)

    def _strike(self, which: int, pause: float) -> None:
        worker = self._workers[which]
        if pause:
            os.kill(worker, signal.SIGSTOP)
            self._wakes.append((time.monotonic() + pause, worker))
        else:
            self._end(worker)
            self._workers[which] = self._new()

    def _end(self, worker: int) -> None:
        self._wakes = [wake for wake in self._wakes if wake[1] != worker]
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)

    def close(self) -> set[int]:
        """Kill all that live, and return their process ids."""
        for worker in self._workers:
            self._end(worker)
        return set(self._workers)


# ---- the figures ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What came of one contender's run."""

    holds: int
    p99: float
    longest: float


def figures(log: Path, living: set[int], end: float) -> Figures:
    """From the log; a wait that was not over at the end counts as far as it came."""
    since: dict[int, float] = {}
    waits: list[float] = []
    holds = 0
    for line in log.read_text().splitlines():
        pid, what, at = line.split()
        if what == "waits":
            since[int(pid)] = float(at)
        else:
            holds += 1
            waits.append(float(at) - since.pop(int(pid)))
    waits += [end - at for pid, at in since.items() if pid in living]
    waits.sort()
    return Figures(holds, waits[int(0.99 * (len(waits) - 1))], waits[-1])


def main() -> int:
    """Both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--ttl", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are ended on every way out
    found: dict[str, Figures] = {}
    with TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        for contender in CONTENDERS:
            log = Path(folder, f"{contender}.log")
            crew = Crew(contender, server.url, arguments, log)
            try:
                crew.follow(plan(arguments), arguments.seconds)
                end = time.monotonic()
            finally:
                living = crew.close()
            found[contender] = now = figures(log, living, end)
            print(f"{contender:>9}: {now.holds:6,} holds, wait p99 {now.p99:5.2f} s", end="")
            print(f", longest {now.longest:5.2f} s", flush=True)
    return judge(found["dibs"], found["redis-py"])


def judge(ours: Figures, theirs: Figures) -> int:
    """The exit code: 0 if the order that we keep costs no more than it may."""
    if 2 * ours.holds < theirs.holds:
        print("less than half of redis-py's holds")
        return 1
    if ours.p99 > 2 * theirs.p99:
        print("the 99th percentile of the waits is more than twice that of redis-py")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
