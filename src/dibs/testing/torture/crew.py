"""The processes of one round: started, killed, paused and ended from here."""

import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from dibs.testing.recorder import Recorder
from dibs.testing.torture.orders import Orders
from dibs.testing.torture.plan import MOST, PRIMITIVES, TorturePlan

_ROW = struct.Struct("=III")


class Board:
    """A row for each worker: what it holds, the cycles it has done, and how often the store was away."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_ROW.size * MOST))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def show(self, worker: int, held: Iterable[str], *, done: int = 0, cut_off: int = 0) -> None:
        """A worker tells which primitives it holds, and what came to pass since it told last."""
        _, cycles, outages = self._row(worker)
        bits = sum(1 << PRIMITIVES.index(each) for each in held)
        _ROW.pack_into(self._memory, worker * _ROW.size, bits, cycles + done, outages + cut_off)

    def held(self, worker: int) -> tuple[str, ...]:
        """Which primitives it holds at this moment."""
        bits = self._row(worker)[0]
        return tuple(each for place, each in enumerate(PRIMITIVES) if bits >> place & 1)

    def cycles(self, worker: int) -> int:
        return self._row(worker)[1]

    def outages(self, worker: int) -> int:
        return self._row(worker)[2]

    def _row(self, worker: int) -> tuple[int, int, int]:
        return _ROW.unpack_from(self._memory, worker * _ROW.size)

    def close(self) -> None:
        self._memory.close()


PATIENCE = 15.0
"""Seconds in which a worker that was told to stop finishes its turn."""
WORKER = "dibs.testing.torture.worker"


class Crew:
    """One worker for each number, replaced when it dies. None is left once `end` has returned."""

    def __init__(self, url: str, prefix: str, plan: TorturePlan, folder: Path) -> None:
        self.board = Board(folder / "board")
        self.recorder = Recorder(folder / "history-supervisor.jsonl")
        self.bad_ends: list[int] = []
        """How workers ended that nobody had killed."""
        self._url, self._prefix, self._plan, self._folder = url, prefix, plan, folder
        self._errors = (folder / "stderr").open("ab")
        self._started = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        self._paused: dict[int, float] = {}

    def start(self) -> None:
        """Start everybody."""
        for number in range(self._plan.processes):
            self._workers.append(self._start(number))

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self._started += 1
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", *self.program(number)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            process_group=0,  # Ctrl-C is ours to hear
        )
        self._tell(worker, self._orders(number))
        return worker

    def program(self, number: int) -> list[str]:
        """The module that a worker runs, and its arguments."""
        return [WORKER]

    def _orders(self, number: int) -> Orders:
        plan = self._plan
        return Orders(
            number=number,
            world=plan.world(number),
            seed=plan.seed * 10_000 + self._started,
            url=self._url,
            prefix=self._prefix,
            tasks=plan.tasks,
            names=plan.names,
            ttl=plan.ttl,
            wait=max(3 * plan.bound, plan.storm + plan.calm),  # in vain: to the end, and told
            folder=str(self._folder),
            parent=os.getpid(),
        )

    def _tell(self, worker: subprocess.Popen[bytes], orders: Orders) -> None:
        assert worker.stdin is not None
        try:
            worker.stdin.write(orders.write())
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already, which is noticed like any other death

    @property
    def cycles(self) -> int:
        return sum(map(self.board.cycles, range(self._plan.processes)))

    @property
    def outages(self) -> int:
        return sum(map(self.board.outages, range(self._plan.processes)))

    @property
    def idle(self) -> list[int]:
        """Those who have not done a single cycle."""
        return [number for number in range(self._plan.processes) if not self.board.cycles(number)]

    @property
    def awake(self) -> list[int]:
        """Those who are not paused."""
        return [number for number in range(self._plan.processes) if number not in self._paused]

    def replace_dead(self) -> None:
        """Put another in the place of each that ended by itself; the verdict will tell."""
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.bad_ends.append(worker.returncode)
                self._replace(number)

    def _replace(self, number: int) -> None:
        stdin = self._workers[number].stdin
        if stdin is not None:
            stdin.close()
        self._workers[number] = self._start(number)

    def kill(self, number: int) -> tuple[str, ...]:
        """As `kill -9`; returns what it held."""
        worker = self._workers[number]
        worker.kill()
        worker.wait()
        held = self.board.held(number)
        self.recorder.disturbed(worker.pid)
        self._replace(number)
        return held

    def pause(self, number: int, seconds: float) -> tuple[str, ...]:
        """Stop it for a while (see `resume`); returns what it held."""
        worker = self._workers[number]
        worker.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # until it really stands still
            os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.recorder.disturbed(worker.pid)
        self._paused[number] = time.monotonic() + seconds
        return self.board.held(number)

    @property
    def next_resume(self) -> float:
        """When somebody's pause ends, on the monotonic clock."""
        return min(self._paused.values(), default=float("inf"))

    def resume(self, *, everybody: bool = False) -> None:
        """Continue those whose pause is over."""
        for number, until in list(self._paused.items()):
            if everybody or time.monotonic() >= until:
                del self._paused[number]
                self._workers[number].send_signal(signal.SIGCONT)
                self.recorder.disturbed(self._workers[number].pid)

    def end(self, *, at_once: bool) -> None:
        """Let everybody finish its turn, or none; who doesn't finish in time is killed."""
        patience = time.monotonic() + (0.0 if at_once else PATIENCE)
        self.resume(everybody=True)
        for worker in self._workers:
            if at_once:
                worker.kill()
            elif worker.stdin is not None:
                worker.stdin.close()  # it reads that as an order to stop
        for worker in self._workers:
            self._bury(worker, patience, at_once=at_once)
        self._workers.clear()

    def _bury(self, worker: subprocess.Popen[bytes], until: float, *, at_once: bool) -> None:
        try:
            code = worker.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            code = worker.wait()
        if worker.stdin is not None:
            worker.stdin.close()
        if code and not at_once:
            self.bad_ends.append(code)

    def close(self) -> None:
        """Kill who is left, and close the books."""
        self.end(at_once=True)
        self._errors.close()
        self.recorder.close()
        self.board.close()
