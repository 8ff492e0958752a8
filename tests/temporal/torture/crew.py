"""The processes of one kind: started, killed, paused and ended from here, each by its own id."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.servers.temporal import TemporalServer
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.records import Diary, killed

PATIENCE = 15.0
WORKER = "tests.temporal.torture.worker"
PLAIN = "tests.temporal.torture.plain"


class Crew:
    """One process for each number, replaced when it dies. None is left once `end` has returned.

    Each runs the module `what`; all write what goes wrong to the one `log`.
    """

    def __init__(
        self, many: int, what: str, log: Path, diary: Diary, orders: Mapping[str, object]
    ) -> None:
        self.bad_ends: list[int] = []
        """Exit codes of those that nobody had killed."""
        self._what, self._diary, self._orders = what, diary, orders
        self._errors = log.open("ab")
        self._started = 0
        self._paused: dict[int, float] = {}
        self._workers = [self._start(number) for number in range(many)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self._started += 1
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", self._what],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=self._errors,  # where Temporal's own threads write
            stderr=self._errors,
            process_group=0,  # Ctrl-C is for the driver
        )
        mine = {"number": number, "start": self._started, "parent": os.getpid()}
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps({**self._orders, **mine}).encode() + b"\n")
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already; `look_after` notices
        return worker

    @property
    def awake(self) -> list[int]:
        """Those that are not paused."""
        return [number for number in range(len(self._workers)) if number not in self._paused]

    def process(self, number: int) -> int:
        """The process id."""
        return self._workers[number].pid

    def look_after(self) -> None:
        """Continue those whose pause is over, and replace the dead."""
        self.resume()
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.bad_ends.append(worker.returncode)
                self._replace(number, self._diary.now())

    def _replace(self, number: int, died_at: float) -> None:
        dead = self._workers[number]
        self._diary.record(killed(died_at, dead.pid))
        if dead.stdin is not None:
            dead.stdin.close()
        self._paused.pop(number, None)
        self._workers[number] = self._start(number)

    def kill(self, number: int) -> None:
        """As `kill -9`; another takes its place."""
        at = self._diary.now()
        self._workers[number].kill()
        self._workers[number].wait()
        self._replace(number, at)

    def pause(self, number: int, seconds: float) -> None:
        """Stop it for a while; see `resume`."""
        worker = self._workers[number]
        worker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._diary.disturbed(worker.pid)
        self._paused[number] = time.monotonic() + seconds

    def resume(self, *, everybody: bool = False) -> None:
        """Continue those whose pause is over."""
        for number, until in list(self._paused.items()):
            if everybody or time.monotonic() >= until:
                del self._paused[number]
                self._workers[number].send_signal(signal.SIGCONT)
                self._diary.disturbed(self._workers[number].pid)

    def end(self, patience: float = PATIENCE) -> None:
        """Ask everybody to end; one that does not in so many seconds is killed, and has ended badly."""
        self.resume(everybody=True)
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.close()  # it reads that as an order to stop
        until = time.monotonic() + patience
        for worker in self._workers:
            try:
                worker.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
            if worker.wait():
                self.bad_ends.append(worker.returncode)
        self._workers.clear()
        self._errors.close()


@dataclass(frozen=True)
class Queues:
    """The task queues of one trial, and the prefix of all its names."""

    prefix: str

    @property
    def holders(self) -> str:
        """Of holders and their work."""
        return f"{self.prefix}-holders"

    @property
    def permits(self) -> str:
        """Of permits and brokers."""
        return f"{self.prefix}-permits"


@dataclass(frozen=True)
class Crews:
    """All processes but the server."""

    workers: Crew
    plain: Crew

    @classmethod
    def start(
        cls, plan: Plan, server: TemporalServer, queues: Queues, folder: Path, diary: Diary
    ) -> Self:
        serving = {
            "address": server.address,
            "folder": str(folder),
            "bug": plan.bug,
            "holders": queues.holders,
            "permits": queues.permits,
        }
        contending = {
            "url": f"{server.url}?task_queue={queues.permits}",
            "prefix": f"{queues.prefix}-",
            "seed": plan.seed,
            "tasks": plan.hands,
            "ttl": plan.lease,
            "wait": 3 * plan.bound,
            "folder": str(folder),
        }
        return cls(
            Crew(plan.workers, WORKER, folder / "workers.log", diary, serving),
            Crew(plan.programs, PLAIN, folder / "plain.log", diary, contending),
        )

    @property
    def all(self) -> tuple[Crew, Crew]:
        """Plain programs first, which need the workers."""
        return self.plain, self.workers
