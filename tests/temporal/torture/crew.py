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
from tests.temporal.torture.diary import Diary
from tests.temporal.torture.marks import killed
from tests.temporal.torture.plan import Plan

PATIENCE = 15.0


class Crew:
    """One process for each number, replaced when it dies. None is left once `end` has returned.

    Each runs the module `what`; all write what goes wrong to the one `log`.
    """

    def __init__(
        self, many: int, what: str, log: Path, diary: Diary, orders: Mapping[str, object]
    ) -> None:
        self.bad_ends: list[int] = []
        """How they ended whom nobody had killed."""
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
            process_group=0,  # Ctrl-C is the driver's to hear
        )
        mine = {"number": number, "start": self._started, "parent": os.getpid()}
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps({**self._orders, **mine}).encode() + b"\n")
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already, which is noticed like any other death
        return worker

    @property
    def awake(self) -> list[int]:
        """Those who are not paused."""
        return [number for number in range(len(self._workers)) if number not in self._paused]

    def process(self, number: int) -> int:
        """The process id."""
        return self._workers[number].pid

    def replace_dead(self) -> None:
        """Put another in the place of each that ended by itself."""
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.bad_ends.append(worker.returncode)
                self._diary.record(killed(self._diary.now(), worker.pid))
                self._replace(number)

    def _replace(self, number: int) -> None:
        stdin = self._workers[number].stdin
        if stdin is not None:
            stdin.close()
        self._paused.pop(number, None)
        self._workers[number] = self._start(number)

    def kill(self, number: int) -> None:
        """As `kill -9`; another takes its place."""
        worker = self._workers[number]
        at = self._diary.now()
        worker.kill()
        worker.wait()
        self._diary.record(killed(at, worker.pid))
        self._replace(number)

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
        """Ask everybody to end; who does not in so many seconds is killed, and has ended badly."""
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


WORKER = "tests.temporal.torture.worker"
PLAIN = "tests.temporal.torture.plain"


@dataclass(frozen=True)
class Queues:
    """The task queues of one trial, and with what all its names begin."""

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
        """Let them come."""
        serving = {
            "address": server.address,
            "folder": str(folder),
            "bug": plan.bug,
            "holders": queues.holders,
            "permits": queues.permits,
        }
        contending = {
            "url": _url(server, queues),
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

    def look_after(self) -> None:
        """Continue whose pause is over, and replace the dead."""
        for crew in (self.workers, self.plain):
            crew.resume()
            crew.replace_dead()

    def wake(self) -> None:
        """Nobody is paused any more."""
        for crew in (self.workers, self.plain):
            crew.resume(everybody=True)

    def end(self) -> None:
        """No process is left."""
        for crew in (self.plain, self.workers):
            crew.end()


def _url(server: TemporalServer, queues: Queues) -> str:
    return f"{server.url}?task_queue={queues.permits}"
