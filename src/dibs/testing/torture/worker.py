"""A process of the torture: takes turns through the public API until it gets SIGTERM, or is killed.

`crew` starts it as `python -m dibs.testing.torture.worker`, with its orders on standard input.
"""

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import dibs
import dibs.sync
from dibs.runtime.port import step
from dibs.testing.leash import hold_to
from dibs.testing.recorder import Recorder
from dibs.testing.torture.contender import Contender, Stopped, TortureSide
from dibs.testing.torture.orders import Board, Orders, read_orders
from dibs.testing.torture.plan import primitive_of
from dibs.testing.torture.resources import ProtectedFiles
from dibs.testing.torture.turns import TURNS, Turns

TOGETHER = 2
"""The most contenders of a process that want the same; else all would gather in the slowest queue."""


class TortureWorker:
    """The process that contenders share: its history, its protected files, its row on the board."""

    def __init__(self, orders: Orders) -> None:
        self.orders: Orders = orders
        self.recorder: Recorder = Recorder(orders.history)
        self.side: TortureSide = TortureSide(orders.side)
        self.stopping: bool = False
        self.contenders: list[Contender] = [
            Contender(self, number) for number in range(orders.tasks)
        ]
        self.write = ProtectedFiles(Path(orders.folder), self.recorder).write
        self._board = Board(Path(orders.folder, "board"))
        self._board.show(orders.number, ())  # the one before may have died a holder
        self._held = Counter[str]()
        self._wanted = Counter[Turns]()
        self._lock = threading.Lock()

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: every contender finishes its turn."""
        self.stopping = True

    def holds(self, primitive: str, change: int, *, done: bool = False) -> None:
        """Count leases held here. The release of the last lease that one call gave ends a cycle."""
        with self._lock:
            self._held[primitive] += change
            self._board.show(self.orders.number, +self._held, done=int(done))

    def cut_off(self) -> None:
        """Count a call that was given up, as the store was away."""
        with self._lock:
            self._board.show(self.orders.number, +self._held, cut_off=1)

    def resources(self, client: Any) -> list[Turns]:
        """Everything that is contended for, by way of `client`."""
        return [TURNS[primitive_of(each)](client, each, self.orders) for each in self.orders.names]

    @contextmanager
    def chosen(self, contender: Contender, resources: Sequence[Turns]) -> Generator[Turns]:
        """Choose what a contender wants for one turn."""
        while True:
            chosen = contender.draw.choice(resources)
            with self._lock:
                if self._wanted[chosen] < TOGETHER:
                    self._wanted[chosen] += 1
                    break
        contender.primitive = primitive_of(chosen.name)
        try:
            yield chosen
        finally:
            with self._lock:
                self._wanted[chosen] -= 1

    async def take_turns(self, contender: Contender, resources: Sequence[Turns]) -> None:
        """Let a contender work until all are to stop."""
        try:
            while not self.stopping:
                with self.chosen(contender, resources) as chosen:
                    await chosen.take(contender)
        except (Stopped, asyncio.CancelledError):
            pass
        except BaseException:
            self.stopping = True
            raise
        finally:
            contender.interruptible = False  # a signal from here on must not hide what went wrong


def run_blocking(worker: TortureWorker) -> None:
    """Take turns in threads; this one waits where a signal can interrupt it."""
    first, *others = worker.contenders

    def stop(number: int, frame: FrameType | None) -> None:
        worker.stop(number, frame)
        first.interrupt()

    signal.signal(signal.SIGTERM, stop)
    client = dibs.sync.connect(worker.orders.url)
    with client, ThreadPoolExecutor(len(worker.contenders)) as pool:
        resources = worker.resources(client)
        started = [
            pool.submit(step, worker.take_turns(contender, resources)) for contender in others
        ]
        step(worker.take_turns(first, resources))
        for each in started:
            each.result()  # which raises what went wrong there


async def run_async(worker: TortureWorker) -> None:
    """Take turns in an event loop."""
    client = dibs.connect(worker.orders.url)  # and not `async with`: the store may be away now
    resources = worker.resources(client)
    turns = {contender: worker.take_turns(contender, resources) for contender in worker.contenders}
    tasks = {contender: asyncio.create_task(turn) for contender, turn in turns.items()}

    def stop() -> None:
        worker.stopping = True
        for contender, task in tasks.items():
            if contender.interruptible:
                contender.interruptible = False
                task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.wait(tasks.values())
    await client.close()
    for task in tasks.values():
        task.result()  # which raises what went wrong there


def work(worker: TortureWorker) -> None:
    """Take turns until a signal, or the end of the supervisor."""
    logging.getLogger("dibs").addHandler(logging.NullHandler())  # losses are what it is about
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, worker.stop)
    hold_to(worker.orders.parent)
    if worker.orders.side == "asyncio":
        asyncio.run(run_async(worker))
    else:
        run_blocking(worker)


if __name__ == "__main__":
    work(TortureWorker(read_orders()))
