"""One process of the torture: takes turns through the public API until it is told to stop, or killed.

Started by `crew` as `python -m leasehold.testing.torture.worker`, with its orders on standard input.
"""

import asyncio
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import leasehold
import leasehold.sync
from leasehold.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from leasehold.testing.history import Recorder
from leasehold.testing.torture.board import HOLDING, IDLE, Board
from leasehold.testing.torture.hands import Hand, Stopped
from leasehold.testing.torture.leash import hold_to
from leasehold.testing.torture.orders import Orders, read_orders
from leasehold.testing.torture.resources import Pair

TOGETHER = 2
"""So many hands of a process at most want the same: else all would gather in the queue that moves slowest,
and a kill would leave one full of the dead, of whom each holds up the living for a claim window."""


class Worker:
    """What all hands of a process share: the books, the resources, and whether to stop."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.recorder = Recorder(orders.history)
        self.stopping = False
        self.hands = [Hand(self, number) for number in range(orders.tasks)]
        self._board = Board(Path(orders.folder, "board"))
        self._board.show(orders.number, IDLE)  # the one before may have died a holder
        self._held = 0
        self._wanted = Counter[bytes]()
        self._pairs: dict[str, Pair] = {}
        self._lock = threading.Lock()

    def stop(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler: let every hand finish its turn."""
        self.stopping = True

    def holds(self, change: int, *, done: int = 0, cut_off: int = 0) -> None:
        """So many leases more, or less, are held here; the board says whether there are any."""
        with self._lock:
            self._held += change
            state = HOLDING if self._held else IDLE
            self._board.show(self.orders.number, state, done=done, cut_off=cut_off)

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

    @contextmanager
    def chosen(self, hand: Hand, resources: list[Any]) -> Generator[Any]:
        """What a hand wants for one turn."""
        while True:
            resource = hand.draw.choice(resources)
            with self._lock:
                if self._wanted[resource.key] < TOGETHER:
                    self._wanted[resource.key] += 1
                    break
        try:
            yield resource
        finally:
            with self._lock:
                self._wanted[resource.key] -= 1

    def pair(self, lease: Any) -> Pair:
        """The resources of the unit that a lease has."""
        name = lease.key.decode().rpartition("/")[2]
        unit = f"{name}-{lease.slots[0]}"
        with self._lock:
            if unit not in self._pairs:
                self._pairs[unit] = Pair(Path(self.orders.folder), unit, self.recorder)
            return self._pairs[unit]


# ---- threads --------------------------------------------------------------------------------------


def run_blocking(worker: Worker) -> None:
    """Take turns in threads; this one waits where a signal can interrupt it."""
    first, *others = worker.hands

    def stop(number: int, frame: FrameType | None) -> None:
        worker.stop(number, frame)
        first.interrupt()

    signal.signal(signal.SIGTERM, stop)
    client = leasehold.sync.connect(worker.orders.url)
    with client, ThreadPoolExecutor(len(worker.hands)) as pool:
        resources = worker.resources(client)
        started = [pool.submit(_turns, worker, hand, resources) for hand in others]
        _turns(worker, first, resources)
        for each in started:
            each.result()  # which raises what went wrong there


def _turns(worker: Worker, hand: Hand, resources: list[Any]) -> None:
    try:
        while not worker.stopping:
            with worker.chosen(hand, resources) as wanted:
                _turn(hand, wanted)
    except Stopped:
        pass
    except BaseException:
        worker.stopping = True
        raise


def _turn(hand: Hand, wanted: Any) -> None:
    invoked = hand.asking(wanted.key)
    try:
        lease = wanted.acquire()
        hand.interruptible = False
    except (AcquireTimeout, Stopped):
        return hand.gave_up(wanted.key, invoked)
    except BackendUnavailable:
        return hand.cut_off()
    hand.granted(lease, invoked, getattr(wanted, "capacity", 1))
    try:
        for seconds in hand.steps(lease):
            time.sleep(seconds)
    except LeaseLost:
        pass
    hand.releasing(lease)
    try:
        lease.release()
    except BackendUnavailable:
        hand.cut_off()


# ---- tasks ----------------------------------------------------------------------------------------


async def run_async(worker: Worker) -> None:
    """Take turns in an event loop."""
    client = leasehold.connect(worker.orders.url)  # and not `async with`: the store may be away now
    resources = worker.resources(client)
    turns = {hand: _async_turns(worker, hand, resources) for hand in worker.hands}
    tasks = {hand: asyncio.create_task(turn) for hand, turn in turns.items()}

    def stop() -> None:
        worker.stopping = True
        for hand, task in tasks.items():
            if hand.interruptible:
                hand.interruptible = False
                task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.wait(tasks.values())
    await client.close()
    for task in tasks.values():
        task.result()  # which raises what went wrong there


async def _async_turns(worker: Worker, hand: Hand, resources: list[Any]) -> None:
    try:
        while not worker.stopping:
            with worker.chosen(hand, resources) as wanted:
                await _async_turn(hand, wanted)
    except (Stopped, asyncio.CancelledError):
        pass
    except BaseException:
        worker.stopping = True
        raise


async def _async_turn(hand: Hand, wanted: Any) -> None:
    invoked = hand.asking(wanted.key)
    try:
        lease = await wanted.acquire()
        hand.interruptible = False
    except (AcquireTimeout, asyncio.CancelledError):
        return hand.gave_up(wanted.key, invoked)
    except BackendUnavailable:
        return hand.cut_off()
    hand.granted(lease, invoked, getattr(wanted, "capacity", 1))
    try:
        for seconds in hand.steps(lease):
            await asyncio.sleep(seconds)
    except LeaseLost:
        pass
    hand.releasing(lease)
    try:
        await lease.release()
    except BackendUnavailable:
        hand.cut_off()


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
