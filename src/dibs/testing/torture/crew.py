"""The processes of one round: started, killed, paused and ended from here."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from dibs.testing.recorder import Recorder
from dibs.testing.torture.orders import Board, Orders
from dibs.testing.torture.plan import TorturePlan

PATIENCE = 15.0
"""Seconds in which a worker finishes its turn after SIGTERM."""
WORKER = "dibs.testing.torture.worker"


class Crew:
    """The workers of a round. One that dies is replaced. After `end`, no worker is left."""

    def __init__(self, url: str, prefix: str, plan: TorturePlan, folder: Path) -> None:
        self.board: Board = Board(folder / "board")
        self.recorder: Recorder = Recorder(folder / "history-supervisor.jsonl")
        self.bad_ends: list[int] = []
        """Exit codes of workers that ended by themselves."""
        self._url, self._prefix, self._plan, self._folder = url, prefix, plan, folder
        self._numbers = range(plan.processes)
        self._errors = (folder / "stderr").open("ab")
        self._started = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        self._paused: dict[int, float] = {}

    def start(self) -> None:
        """Start all workers."""
        self._workers += map(self._start, self._numbers)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self._started += 1
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", *self.program(number)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            process_group=0,  # Ctrl-C is for the supervisor
        )
        assert worker.stdin is not None
        try:
            worker.stdin.write(self._orders(number).write())
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already; `replace_dead` notices
        return worker

    def program(self, number: int) -> list[str]:
        """The module that a worker runs, and its arguments."""
        return [WORKER]

    def _orders(self, number: int) -> Orders:
        plan = self._plan
        return Orders(
            number=number,
            side=plan.side(number),
            seed=plan.seed * 10_000 + self._started,
            url=self._url,
            prefix=self._prefix,
            tasks=plan.tasks,
            names=plan.names,
            ttl=plan.ttl,
            wait=max(3 * plan.bound, plan.storm + plan.calm),  # who waits in vain is noticed
            folder=str(self._folder),
            parent=os.getpid(),
        )

    @property
    def cycles(self) -> int:
        return sum(map(self.board.cycles, self._numbers))

    @property
    def outages(self) -> int:
        return sum(map(self.board.outages, self._numbers))

    @property
    def idle(self) -> list[int]:
        """Workers that have not done a single cycle."""
        return [number for number in self._numbers if not self.board.cycles(number)]

    @property
    def awake(self) -> list[int]:
        """Workers that are not paused."""
        return [number for number in self._numbers if number not in self._paused]

    def replace_dead(self) -> None:
        """Replace each worker that ended by itself. The verdict reports them."""
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.bad_ends.append(worker.returncode)
                self._replace(number)

    def _replace(self, number: int) -> None:
        _close_stdin(self._workers[number])
        self._workers[number] = self._start(number)

    def kill(self, number: int) -> tuple[str, ...]:
        """Kill a worker (SIGKILL) and replace it; returns what it held."""
        worker = self._workers[number]
        worker.kill()
        worker.wait()
        held = self.board.held(number)
        self.recorder.disturbed(worker.pid)
        self._replace(number)
        return held

    def pause(self, number: int, seconds: float) -> tuple[str, ...]:
        """Stop a worker for a while (see `resume`); returns what it held."""
        worker = self._workers[number]
        worker.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # until it really stands still
            os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.recorder.disturbed(worker.pid)
        self._paused[number] = time.monotonic() + seconds
        return self.board.held(number)

    @property
    def next_resume(self) -> float:
        """End of the next pause, on the monotonic clock."""
        return min(self._paused.values(), default=float("inf"))

    def resume(self, *, everybody: bool = False) -> None:
        """Continue workers whose pause is over."""
        for number, until in list(self._paused.items()):
            if everybody or time.monotonic() >= until:
                del self._paused[number]
                self._workers[number].send_signal(signal.SIGCONT)
                self.recorder.disturbed(self._workers[number].pid)

    def end(self, *, at_once: bool) -> None:
        """Let all workers finish their turns, or kill them `at_once` or after `PATIENCE`."""
        until = time.monotonic() + (0.0 if at_once else PATIENCE)
        self.resume(everybody=True)
        for worker in self._workers:
            if at_once:
                worker.kill()
            _close_stdin(worker)  # a worker reads that as an order to stop
        for worker in self._workers:
            code = _wait(worker, until)
            if code and not at_once:
                self.bad_ends.append(code)
        self._workers.clear()

    def close(self) -> None:
        """Kill the workers that are left, and close all files."""
        self.end(at_once=True)
        self._errors.close()
        self.recorder.close()
        self.board.close()


def _close_stdin(worker: subprocess.Popen[bytes]) -> None:
    if worker.stdin is not None:
        with suppress(BrokenPipeError):  # it died before it read its orders
            worker.stdin.close()


def _wait(worker: subprocess.Popen[bytes], until: float) -> int:
    """Wait for the exit code; kill the worker if it comes too late."""
    try:
        return worker.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        worker.kill()
        return worker.wait()
