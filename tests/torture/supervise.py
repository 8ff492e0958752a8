"""Starts workers, kills and pauses them at the worst moments, and gives a verdict on what they saw."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.testing import Recorder, Violation, check, check_liveness, read
from leasehold.testing.checker import check_writes
from tests.torture.board import HOLDING, Board

ROOT = Path(__file__).resolve().parents[2]
PAUSES = (0.5, 1.0, 3.0)
"""How long a worker is stopped, in ttls."""
SLACK = 5.0
"""Seconds for starts of processes and a loaded machine."""


@dataclass
class Plan:
    """How much is to be done before it is over."""

    cycles: int
    kills: int
    stops: int
    workers: int = 6
    ttl: float = 0.6
    limit: float = 600.0
    """Seconds after which it ends in any case."""
    seed: int = 1


@dataclass
class Verdict:
    """What came of it."""

    cycles: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    """The faults that struck a worker that held a lease."""
    violations: list[Violation] = field(default_factory=list)
    stale: int = 0
    """Writes under an old token that the unfenced resource took."""
    events: int = 0
    seconds: float = 0.0
    trouble: str = ""
    """What workers wrote to stderr, and how they ended."""


class Supervisor:
    """Runs one plan against one store."""

    def __init__(self, url: str, folder: Path, plan: Plan) -> None:
        self.url = url
        self.folder = folder
        self.plan = plan
        self.draw = random.Random(plan.seed)
        self.board = Board(folder / "board")
        self.recorder = Recorder(folder / "history-supervisor.jsonl")
        self.errors = (folder / "stderr").open("ab")
        self.seeds = 0
        self.faults: Counter[str] = Counter()
        self.hit: Counter[str] = Counter()
        self.ends: list[int] = []
        self.workers = [self.start(number) for number in range(plan.workers)]
        self.stopped: dict[int, float] = {}

    def start(self, number: int) -> subprocess.Popen[bytes]:
        self.seeds += 1
        arguments = [str(number), str(self.plan.seed * 10_000 + self.seeds), self.url]
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.torture.worker",
                *arguments,
                self.folder,
                str(self.plan.ttl),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stderr=self.errors,
            start_new_session=True,
        )

    @property
    def cycles(self) -> int:
        return sum(self.board.cycles(number) for number in range(self.plan.workers))

    def run(self) -> Verdict:
        began = time.monotonic()
        plan = self.plan
        try:
            self.warm_up(began + plan.limit)
            while time.monotonic() - began < plan.limit and not self.enough():
                self.strike()
                self.resume()
                time.sleep(self.draw.uniform(0.1, 0.5))  # faults come when they like
        finally:
            cycles = self.cycles
            self.end()
        verdict = self.judge()
        verdict.cycles, verdict.seconds = cycles, time.monotonic() - began
        return verdict

    def warm_up(self, until: float) -> None:
        """Faults say nothing before work is being done."""
        while self.cycles < 20 and time.monotonic() < until:
            self.replace_dead()
            time.sleep(0.02)

    def enough(self) -> bool:
        plan, faults = self.plan, self.faults
        done = faults["kill"] >= plan.kills and faults["stop"] >= plan.stops
        return done and self.cycles >= plan.cycles

    def replace_dead(self) -> None:
        """A worker that ended by itself is trouble, and is told so in the verdict."""
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.ends.append(worker.returncode)
                self.workers[number] = self.start(number)

    def strike(self) -> None:
        """Kill or stop somebody, a holder if there is one."""
        self.replace_dead()
        awake = [number for number in range(self.plan.workers) if number not in self.stopped]
        if len(self.stopped) >= self.plan.workers / 2:
            return  # somebody must be left to take over
        holding = [number for number in awake if self.board.state(number) == HOLDING]
        if not holding and self.draw.random() < 0.8:
            return  # most faults are worth more against a holder
        number = self.draw.choice(holding or awake)
        kind = self.draw.choice(("kill", "stop", "stop", "stop"))
        if kind == "kill":
            self.kill(number)
        else:
            self.stop(number)
        self.faults[kind] += 1

    def kill(self, number: int) -> None:
        worker = self.workers[number]
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.count_hit(number, "kill")
        self.recorder.disturbed(worker.pid)
        self.workers[number] = self.start(number)

    def stop(self, number: int) -> None:
        self.workers[number].send_signal(signal.SIGSTOP)
        self.count_hit(number, "stop")
        self.recorder.disturbed(self.workers[number].pid)
        self.stopped[number] = time.monotonic() + self.draw.choice(PAUSES) * self.plan.ttl

    def count_hit(self, number: int, kind: str) -> None:
        if self.board.state(number) == HOLDING:
            self.hit[kind] += 1

    def resume(self, *, all_of_them: bool = False) -> None:
        for number, until in list(self.stopped.items()):
            if all_of_them or time.monotonic() >= until:
                del self.stopped[number]
                self.workers[number].send_signal(signal.SIGCONT)
                self.recorder.disturbed(self.workers[number].pid)

    def end(self) -> None:
        """Let everybody finish its turn; who does not is trouble."""
        self.resume(all_of_them=True)
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                self.ends.append(worker.wait(30))
            except subprocess.TimeoutExpired:
                worker.kill()
                self.ends.append(worker.wait())
        self.errors.close()
        self.recorder.close()
        self.board.close()

    def judge(self) -> Verdict:
        events = read(*self.folder.glob("history-*.jsonl"))
        unfenced = [event for event in events if event.resource.startswith("unfenced")]
        rest = [event for event in events if not event.resource.startswith("unfenced")]
        bound = self.plan.ttl * 2 + SLACK  # the dead one's ttl, and a claim window
        bad_ends = [end for end in self.ends if end not in (0, -signal.SIGTERM)]
        trouble = (self.folder / "stderr").read_text(errors="replace")
        return Verdict(
            faults=self.faults,
            hit=self.hit,
            violations=check(rest) + check_liveness(rest, bound),
            stale=len(list(check_writes(unfenced))),
            events=len(events),
            trouble=f"workers ended with {bad_ends}\n{trouble}" if bad_ends else "",
        )
