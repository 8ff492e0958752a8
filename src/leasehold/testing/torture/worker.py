"""One process of the torture: takes turns through the public API until it is told to stop, or killed.

Started by `crew` as `python -m leasehold.testing.torture.worker`, with its orders on standard input.
"""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import leasehold
import leasehold.sync
from leasehold.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from leasehold.testing.history import Event, Recorder
from leasehold.testing.torture.board import ASKING, HOLDING, IDLE, Board
from leasehold.testing.torture.leash import hold_to
from leasehold.testing.torture.orders import Orders, read_orders
from leasehold.testing.torture.resources import Pair


class Stopped(KeyboardInterrupt):
    """Told to stop while waiting in a queue."""


class Worker:
    """What both worlds share: the books, the resources, and how long things take."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.draw = random.Random(orders.seed)  # noqa: S311
        self.recorder = Recorder(orders.history)
        self.board = Board(Path(orders.folder, "board"))
        self.board.show(orders.number, IDLE)  # the one before may have died a holder
        self.stopping = False
        self.interruptible = False
        self._pairs: dict[str, Pair] = {}

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """A signal's handler: go on until the turn is over, but wait for nothing more."""
        self.stopping = True
        if self.interruptible:
            self.interruptible = False
            raise Stopped

    def resources(self, client: Any) -> list[Any]:
        """The locks and semaphores of a client of either world, the locks more often."""
        orders = self.orders
        how = {"ttl": orders.ttl, "wait": orders.wait, "env_load": False}
        found: list[Any] = []
        for name, capacity in orders.names.items():
            full = orders.prefix + name
            if capacity == 1:
                found += [client.lock(full, **how)] * 2
            else:
                found.append(client.semaphore(full, capacity, **how))
        return found

    def asking(self, key: bytes) -> float:
        """A call that waits begins; from here on `stop` may interrupt it."""
        self.board.show(self.orders.number, ASKING)
        invoked = self.recorder.asked(key)
        self.interruptible = True
        if self.stopping:
            self.stop()
        return invoked

    def granted(self, lease: Any, invoked: float, capacity: int) -> None:
        self.recorder.granted(lease, invoked, capacity=capacity)
        self.board.show(self.orders.number, HOLDING)

    def gave_up(self, key: bytes, invoked: float) -> None:
        self.interruptible = False
        self.recorder.gave_up(key, invoked)
        self.board.show(self.orders.number, IDLE)

    def cut_off(self) -> None:
        """The store was away: nobody can be served, and nothing is said about waiting."""
        self.interruptible = False
        self.recorder.record(Event(self.recorder.now(), "disturbed"))
        self.board.show(self.orders.number, IDLE, cut_off=1)

    def steps(self, lease: Any) -> Iterator[float]:
        """The body: check, work for as many seconds as are yielded, write."""
        ttl = self.orders.ttl
        for _ in range(self.draw.randint(1, 3)):
            at = self.recorder.now()
            lease.ensure()
            self.recorder.renewed(lease)
            self.recorder.believed(lease, at)
            lengths = (0.0, 0.002, 0.3 * ttl, 1.2 * ttl)
            yield self.draw.choices(lengths, (75, 24, 0.8, 0.2))[0]
            self.pair(lease).write(lease)

    def pair(self, lease: Any) -> Pair:
        """The resources of the unit that a lease has."""
        name = lease.key.decode().rpartition("/")[2]
        unit = f"{name}-{lease.slots[0]}"
        if unit not in self._pairs:
            self._pairs[unit] = Pair(Path(self.orders.folder), unit, self.recorder)
        return self._pairs[unit]

    def releasing(self, lease: Any) -> None:
        self.recorder.renewed(lease)  # whatever the keeper did during the last step
        self.recorder.releasing(lease)
        self.board.show(self.orders.number, IDLE, done=1)


def run_blocking(worker: Worker) -> None:
    """Take turns in a thread."""
    signal.signal(signal.SIGTERM, worker.stop)
    with leasehold.sync.connect(worker.orders.url) as client:
        resources = worker.resources(client)
        try:
            while not worker.stopping:
                _turn(worker, worker.draw.choice(resources))
        except Stopped:
            pass


def _turn(worker: Worker, wanted: Any) -> None:
    invoked = worker.asking(wanted.key)
    try:
        lease = wanted.acquire()
        worker.interruptible = False
    except (AcquireTimeout, Stopped):
        return worker.gave_up(wanted.key, invoked)
    except BackendUnavailable:
        return worker.cut_off()
    worker.granted(lease, invoked, getattr(wanted, "capacity", 1))
    try:
        for seconds in worker.steps(lease):
            time.sleep(seconds)
    except LeaseLost:
        pass
    worker.releasing(lease)
    try:
        lease.release()
    except BackendUnavailable:
        worker.cut_off()


async def run_async(worker: Worker) -> None:
    """Take turns in an event loop."""
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        try:
            worker.stop()
        except Stopped:
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    client = leasehold.connect(worker.orders.url)  # and not `async with`: the store may be away now
    resources = worker.resources(client)
    try:
        while not worker.stopping:
            await _async_turn(worker, worker.draw.choice(resources))
    except (Stopped, asyncio.CancelledError):
        pass
    await client.close()


async def _async_turn(worker: Worker, wanted: Any) -> None:
    invoked = worker.asking(wanted.key)
    try:
        lease = await wanted.acquire()
        worker.interruptible = False
    except (AcquireTimeout, asyncio.CancelledError):
        return worker.gave_up(wanted.key, invoked)
    except BackendUnavailable:
        return worker.cut_off()
    worker.granted(lease, invoked, getattr(wanted, "capacity", 1))
    try:
        for seconds in worker.steps(lease):
            await asyncio.sleep(seconds)
    except LeaseLost:
        pass
    worker.releasing(lease)
    try:
        await lease.release()
    except BackendUnavailable:
        worker.cut_off()


def main() -> None:
    """Do as ordered."""
    orders = read_orders()
    logging.getLogger("leasehold").addHandler(logging.NullHandler())  # losses are what it is about
    worker = Worker(orders)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, worker.stop)
    hold_to(orders.parent)
    if orders.number % 2:
        asyncio.run(run_async(worker))
    else:
        run_blocking(worker)


if __name__ == "__main__":
    main()
