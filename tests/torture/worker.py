"""One process of the torture: takes turns through the public API until it is told to stop, or killed.

Run as `python -m tests.torture.worker NUMBER SEED URL FOLDER TTL`. Even numbers block, odd ones are
asyncio.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import leasehold
import leasehold.sync
from leasehold.errors import AcquireTimeout, LeaseLost
from leasehold.primitives.lease import LeaseBase
from leasehold.testing import Recorder
from tests.torture.board import ASKING, HOLDING, IDLE, Board
from tests.torture.resources import Pair

KEYS = ("a", "b", "c", "d", "e", "f")
WAIT = 20.0


class Worker:
    """What both worlds share: the books, the resources, and how long things take."""

    def __init__(self, number: int, seed: int, folder: Path, ttl: float) -> None:
        self.number = number
        self.ttl = ttl
        self.draw = random.Random(seed)
        self.recorder = Recorder(folder / f"history-{number}-{seed}.jsonl")
        self.board = Board(folder / "board")
        self.board.show(number, IDLE)  # the one before may have died a holder
        self.pairs = {key: Pair(folder, key, self.recorder) for key in KEYS}
        self.stopping = False
        self.parent = os.getppid()
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def goes_on(self) -> bool:
        """Until it is told to stop, or nobody is left to tell it."""
        return not self.stopping and os.getppid() == self.parent

    def steps(self, lease: LeaseBase, key: str) -> Iterator[float]:
        """The body: check, work for as many seconds as are yielded, write."""
        for _ in range(self.draw.randint(1, 3)):
            at = self.recorder.now()
            lease.ensure()
            self.recorder.renewed(lease)
            self.recorder.believed(lease, at)
            yield self.draw.choices(
                (0.0, 0.002, 0.3 * self.ttl, 1.2 * self.ttl), (70, 28, 1.5, 0.5)
            )[0]
            self.pairs[key].write(lease)

    def asking(self, key: bytes) -> float:
        self.board.show(self.number, ASKING)
        return self.recorder.asked(key)

    def granted(self, lease: LeaseBase, invoked: float) -> None:
        self.recorder.granted(lease, invoked)
        self.board.show(self.number, HOLDING)

    def releasing(self, lease: LeaseBase) -> None:
        self.recorder.releasing(lease)
        self.board.show(self.number, IDLE, done=1)


def run_blocking(worker: Worker, url: str) -> None:
    client = leasehold.sync.connect(url)
    while worker.goes_on():
        name = worker.draw.choice(KEYS)
        lock = client.lock(name, ttl=worker.ttl, wait=WAIT)
        invoked = worker.asking(lock.key)
        try:
            lease = lock.acquire()
        except AcquireTimeout:
            worker.recorder.gave_up(lock.key, invoked)
            continue
        worker.granted(lease, invoked)
        try:
            for seconds in worker.steps(lease, name):
                time.sleep(seconds)
        except LeaseLost:
            pass
        worker.releasing(lease)
        lease.release()
    client.close()


async def run_async(worker: Worker, url: str) -> None:
    client = leasehold.connect(url)
    while worker.goes_on():
        name = worker.draw.choice(KEYS)
        lock = client.lock(name, ttl=worker.ttl, wait=WAIT)
        invoked = worker.asking(lock.key)
        try:
            lease = await lock.acquire()
        except AcquireTimeout:
            worker.recorder.gave_up(lock.key, invoked)
            continue
        worker.granted(lease, invoked)
        try:
            for seconds in worker.steps(lease, name):
                await asyncio.sleep(seconds)
        except LeaseLost:
            pass
        worker.releasing(lease)
        await lease.release()
    await client.close()


def main(number: str, seed: str, url: str, folder: str, ttl: str) -> None:
    worker = Worker(int(number), int(seed), Path(folder), float(ttl))
    if worker.number % 2:
        asyncio.run(run_async(worker, url))
    else:
        run_blocking(worker, url)


if __name__ == "__main__":
    main(*sys.argv[1:])
