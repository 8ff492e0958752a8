"""A round: all workers at work, faults at the worst moments, then calm, then the end."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dibs.testing.torture.crew import Crew
from dibs.testing.torture.plan import TorturePlan
from dibs.testing.torture.verdict import KILL, PAUSES, Verdict, pause_name

type Doing = Literal["starting", "faults", "calm", "checking", "cleaning up"]


@dataclass(frozen=True, slots=True)
class TortureProgress:
    """How far a torture has come."""

    doing: Doing
    seconds: float
    """Since it began."""
    of: float
    """Seconds that it will take. An estimate if it ends after a number of cycles."""
    cycles: int
    kills: int
    pauses: int
    struck: int
    """Faults that struck a holder."""


WARM_UP = 20.0
"""Seconds in which each process has done its first cycle, or something is wrong."""
GAPS = (0.1, 0.5)
"""Seconds between two faults; more where a process has many tasks, as all of them are struck."""
GLANCE = 0.005
"""Seconds between two looks for a holder to strike."""
GLANCES = 60
"""Looks for a holder of what was struck least; then any holder will do."""
KILLS = 0.25
"""Share of kills among faults, while few are paused."""
ANYBODY = 0.1
"""The chance to strike any worker, also one that waits."""
TICK = 0.1
"""Seconds between two looks at what sends no notification."""
FULL = 64 << 20
"""Bytes of history after which a round ends. In memory it is several times as large."""
BAD_ENDS = 5
"""Processes that end by themselves before the round is given up."""

type Wait = Callable[[float], bool]
"""Waits for a number of seconds; returns False once the round is to end."""


class Round:
    """Runs a round. `found` has its counters, its folder the histories of all processes."""

    def __init__(
        self,
        crew: Crew,
        plan: TorturePlan,
        folder: Path,
        number: int,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.crew: Crew = crew
        self.doing: Doing = "starting"
        self._found = Verdict()
        self._idle: list[int] = []
        """Workers that did not do a single cycle before faults began."""
        self._plan = plan
        self._folder = folder
        self._enough = enough
        self._look_at = 0.0
        self._draw = random.Random(plan.seed * 1_000 + number)  # noqa: S311

    @property
    def found(self) -> Verdict:
        """Counters so far."""
        self._found.cycles, self._found.outages = self.crew.cycles, self.crew.outages
        return self._found

    def run(self, wait: Wait) -> None:
        """From the start of the processes to their end."""
        began = time.monotonic()
        self.crew.start()
        self._warm_up(min(began + WARM_UP, began + self._plan.storm), wait)
        self._storm(began + self._plan.storm, wait)
        self.crew.resume(everybody=True)
        if self._plan.calm and not self._hopeless and wait(0.0):
            self._be_calm(wait)

    def trouble(self, *, early: bool) -> str:
        """Describe processes that ended or idled by themselves. `early`: the round was ended early."""
        found: list[str] = []
        ends = self.crew.bad_ends
        if ends and not (early and self.crew.outages):
            codes = ", ".join(map(str, sorted(set(ends))))
            found.append(f"{len(ends)} processes ended by themselves (exit codes: {codes})")
        if self._idle and not early:
            found.append(f"{len(self._idle)} processes did not get to work before faults began")
        return "; ".join(found)

    @property
    def _hopeless(self) -> bool:
        return len(self.crew.bad_ends) >= BAD_ENDS

    @property
    def _over(self) -> bool:
        """There are enough cycles, or too much history, or too many bad ends."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + TICK
        written = sum(file.stat().st_size for file in self._folder.glob("history-*"))
        return written > FULL or self._hopeless or self._enough()

    def _warm_up(self, until: float, wait: Wait) -> None:
        """Wait until all work: faults show nothing before."""
        while self.crew.idle and time.monotonic() < until and not self._hopeless:
            self.crew.replace_dead()
            if not wait(TICK):
                return
        self._idle = self.crew.idle

    def _storm(self, until: float, wait: Wait) -> None:
        self.doing = "faults"
        crew = self.crew
        strike_at = time.monotonic()
        glances = 0
        while (now := time.monotonic()) < until and not self._over:
            if now >= strike_at:
                crew.replace_dead()
                struck = self._strike(glances)
                glances = 0 if struck else glances + 1
                strike_at = now + (self._gap() if struck else GLANCE)
            crew.resume()
            if not wait(max(0.0, min(strike_at, crew.next_resume, until) - time.monotonic())):
                return

    def _gap(self) -> float:
        return self._draw.uniform(*GAPS) * (1 + self._plan.tasks) / 2

    def _strike(self, glances: int) -> bool:
        """Kill or pause a worker, mostly a holder. Returns False if there is none."""
        awake = self.crew.awake
        anybody = not glances and self._draw.random() < ANYBODY
        chosen = awake if anybody else self._holding(awake, choosy=glances < GLANCES)
        if not chosen:
            return False
        self._strike_one(self._draw.choice(chosen))
        return True

    def _holding(self, awake: list[int], *, choosy: bool) -> list[int]:
        """Workers that hold anything; if `choosy`, what was struck least so far."""
        held = {number: self.crew.board.held(number) for number in awake}
        if choosy:
            least = min(self._plan.resources, key=lambda each: self._found.hit_by[each])
            return [number for number, of_one in held.items() if least in of_one]
        return [number for number, of_one in held.items() if of_one]

    def _strike_one(self, number: int) -> None:
        crew, draw = self.crew, self._draw
        many_paused = len(crew.awake) <= self._plan.processes / 2
        if many_paused or draw.random() < KILLS:  # others must be left to take over
            self._count(KILL, crew.kill(number))
        else:
            ttls = draw.choice(PAUSES)
            self._count(pause_name(ttls), crew.pause(number, ttls * self._plan.ttl))

    def _count(self, kind: str, held: Sequence[str]) -> None:
        self._found.faults[kind] += 1
        self._found.hit_by.update(held)
        if held:
            self._found.hit[kind] += 1

    def _be_calm(self, wait: Wait) -> None:
        self.doing = "calm"
        began = time.monotonic()
        until = began + self._plan.calm
        while (left := until - time.monotonic()) > 0:
            if not wait(min(left, TICK)):
                return  # nothing is said about liveness then
            self.crew.replace_dead()
        self._found.calm = time.monotonic() - began
