"""One round: everybody at work, faults at the worst moments, then calm, then the end."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dibs.testing.torture.crew import Crew
from dibs.testing.torture.plan import TorturePlan
from dibs.testing.torture.verdict import KILL, PAUSES, pause_name

type Doing = Literal["starting", "faults", "calm", "checking", "cleaning up"]


@dataclass(frozen=True, slots=True)
class TortureProgress:
    """A glance at a torture under way."""

    doing: Doing
    seconds: float
    """Since it began."""
    of: float
    """So many will it take; guessed, where it is to end after so many cycles."""
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
"""So often is looked for who holds what was struck least; then any holder will do."""
KILLS = 0.25
"""The part of faults that are kills, while few are paused."""
ANYBODY = 0.1
"""The chance to strike whoever it is: also those who wait deserve it."""
TICK = 0.1
"""Seconds between two looks at what can only be looked at."""
FULL = 64 << 20
"""Bytes of history after which a round ends: it has to fit into memory, several times as large."""
BAD_ENDS = 5
"""So many processes that end by themselves show that going on is of no use."""

type Wait = Callable[[float], bool]
"""Waits so many seconds; False once it is to end."""


class Round:
    """Runs it; what was done is in its counters, what was seen in its folder."""

    def __init__(
        self,
        crew: Crew,
        plan: TorturePlan,
        folder: Path,
        number: int,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.hit: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        """How often somebody was struck who held it, by primitive."""
        self.calm = 0.0
        self.idle: list[int] = []
        """Who did not do a single cycle before faults began."""
        self.doing: Doing = "starting"
        self._crew = crew
        self._plan = plan
        self._folder = folder
        self._enough = enough
        self._look_at = 0.0
        self._draw = random.Random(plan.seed * 1_000 + number)  # noqa: S311

    def run(self, wait: Wait) -> None:
        """From the start of the processes to their end."""
        began = time.monotonic()
        self._crew.start()
        self._warm_up(min(began + WARM_UP, began + self._plan.storm), wait)
        self._storm(began + self._plan.storm, wait)
        self._crew.resume(everybody=True)
        if self._plan.calm and not self._hopeless and wait(0.0):
            self._be_calm(wait)

    @property
    def _hopeless(self) -> bool:
        return len(self._crew.bad_ends) >= BAD_ENDS

    @property
    def _over(self) -> bool:
        """There is enough of it, or no room for more, or no sense in it."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + TICK
        written = sum(file.stat().st_size for file in self._folder.glob("history-*"))
        return written > FULL or self._hopeless or self._enough()

    def _warm_up(self, until: float, wait: Wait) -> None:
        """Faults say nothing before work is being done."""
        while self._crew.idle and time.monotonic() < until and not self._hopeless:
            self._crew.replace_dead()
            if not wait(TICK):
                return
        self.idle = self._crew.idle

    def _storm(self, until: float, wait: Wait) -> None:
        self.doing = "faults"
        crew = self._crew
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
        """Kill or pause somebody: mostly a holder, if there is one; whether anybody was struck."""
        awake = self._crew.awake
        anybody = not glances and self._draw.random() < ANYBODY
        chosen = awake if anybody else self._holding(awake, choosy=glances < GLANCES)
        if not chosen:
            return False
        self._strike_one(self._draw.choice(chosen))
        return True

    def _holding(self, awake: list[int], *, choosy: bool) -> list[int]:
        """Who holds something, or what was struck least so far."""
        held = {number: self._crew.board.held(number) for number in awake}
        if choosy:
            least = min(self._plan.resources, key=lambda each: self.struck[each])
            return [number for number, of_one in held.items() if least in of_one]
        return [number for number, of_one in held.items() if of_one]

    def _strike_one(self, number: int) -> None:
        crew, draw = self._crew, self._draw
        many_paused = len(crew.awake) <= self._plan.processes / 2
        if many_paused or draw.random() < KILLS:  # somebody must be left to take over
            self._count(KILL, crew.kill(number))
        else:
            ttls = draw.choice(PAUSES)
            self._count(pause_name(ttls), crew.pause(number, ttls * self._plan.ttl))

    def _count(self, kind: str, held: Sequence[str]) -> None:
        self.faults[kind] += 1
        self.struck.update(held)
        if held:
            self.hit[kind] += 1

    def _be_calm(self, wait: Wait) -> None:
        self.doing = "calm"
        began = time.monotonic()
        until = began + self._plan.calm
        while (left := until - time.monotonic()) > 0:
            if not wait(min(left, TICK)):
                return  # nothing is said about liveness then
            self._crew.replace_dead()
        self.calm = time.monotonic() - began
