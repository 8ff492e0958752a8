"""Runs the simulation: many clients, one store, bad weather, then calm, and a verdict on the history."""

import gc
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from unittest.mock import patch

from dibs.errors import CapacityWarning
from dibs.testing import HistoryEvent, Violation, check, check_liveness
from dibs.testing.checker import check_writes
from tests.torture.actions import ACTIONS
from tests.torture.bugs import BUGS, Bug
from tests.torture.engine import Process
from tests.torture.life import Life
from tests.torture.network import CALM
from tests.torture.promises import STEP, check_all
from tests.torture.world import World

CLIENTS = 10
RATES = 0.009
"""Clients' clocks run this much off at most; the promise allows for 1 %."""
OUTAGE = 3.0
BOUND = 10 + 30 + 5 + OUTAGE + 2
"""Seconds within which a free key reaches a waiter: ttl + patience + window, and slack."""
SETTLED = 300.0
"""Seconds within which everybody comes to an end who begins nothing more, and the dead are forgotten."""
RUN = 10_000
"""Cycles in one history."""
SLOW, BEFORE_IT_IS_SLOW = 1.0, 100.0
"""Seconds that a cycle takes at most, on average: where it is more, somebody hinders the others."""
SINGLE = frozenset(f"lock:{name}" for name in "abcde")
"""Keys of which every hold is in the history, so that it shows who waits for nobody."""


@dataclass
class Result:
    """What came of a run."""

    cycles: Counter[str] = field(default_factory=Counter)
    """By what was done."""
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    stale: int = 0
    """Writes that only the unfenced resource took: the faults bit."""
    virtual: float = 0.0
    real: float = 0.0
    digest: str = ""
    """The same for the same history."""

    def add(self, other: "Result") -> None:
        self.cycles += other.cycles
        self.faults += other.faults
        self.violations += other.violations
        self.stale += other.stale
        self.virtual += other.virtual
        self.real += other.real
        self.digest = sha256((self.digest + other.digest).encode()).hexdigest()


class Simulation:
    """One world and all its clients."""

    def __init__(
        self, seed: int, bug: Bug | None = None, kinds: Sequence[str] = tuple(ACTIONS)
    ) -> None:
        self.world = World(seed)
        self.engine = self.world.engine
        self.draw = self.engine.random
        planted = bug or Bug()
        if planted.store is not None:
            planted.store(self.world.network)
        self.world.network.weather = planted.weather
        self.rates = max(RATES, planted.rates)
        self.kinds = kinds
        self.faults: Counter[str] = Counter()
        self.past = 0
        self.stepped = 0.0
        self.lives = [self.be_born() for _ in range(CLIENTS)]
        self.engine.at(1.0, self.strike)

    def be_born(self) -> Life:
        rate = 1 + self.draw.uniform(-self.rates, self.rates)
        self.past += 1
        process = Process(self.engine, self.past, rate, self.draw.uniform(-1e4, 1e4))
        return Life(process, self.world, self.kinds)

    # -- bad weather ------------------------------------------------------------------------------------

    def strike(self, _: object) -> None:
        """Something bad happens every few seconds."""
        if self.world.closing:
            return
        kind = self.draw.choice(("kill", "kill", "stop", "stop", "stop", "away", "step", "cancel"))
        number = self.draw.randrange(CLIENTS)
        if kind == "kill":
            self.lives[number].die()
            self.lives[number] = self.be_born()
        elif kind == "stop":
            self.lives[number].stop(self.draw.choice((0.3, 2.0, 12.0)))
        elif kind == "away":
            self.world.away_since = self.engine.now
            self.world.network.away_until = self.engine.now + self.draw.uniform(0, OUTAGE)
        elif kind == "step":
            kind = self.set_forward()
        else:
            kind = "cancel" if self.lives[number].cancel() else ""
        if kind:
            self.faults[kind] += 1
        self.engine.at(self.engine.now + self.draw.expovariate(1 / 2), self.strike)

    def set_forward(self) -> str:
        """The store's clock, by less than the smallest margin is within any lease's time."""
        if self.engine.now < self.stepped + 15:
            return ""
        self.stepped = self.engine.now
        self.engine.clock.advance(self.draw.uniform(0, STEP))
        return "step"

    # -- a run ------------------------------------------------------------------------------------------

    def run(self, cycles: int) -> Result:
        began, world = time.process_time(), self.world
        until = BEFORE_IT_IS_SLOW + cycles * SLOW
        self.engine.run(lambda: world.cycles < cycles and self.engine.now < until)
        if world.cycles < cycles:
            world.record("stuck", resource=f"{world.cycles} cycles in {self.engine.now:.0f} s")
        self.calm_down()
        for life in self.lives:
            life.process.die()
        return self.judge(began)

    def calm_down(self) -> None:
        """Faults end; so does everybody's waiting, and then nothing is held any more."""
        self.world.closing, self.world.network.weather = True, CALM
        until = self.engine.now + SETTLED
        self.engine.at(until, lambda _: None)  # time goes on also when nothing happens any more
        self.engine.run(lambda: self.engine.now < until)
        for life in self.lives:
            for hand in life.hands:
                if hand.task is not None and not hand.task.done:
                    self.world.record(
                        "stuck", hand.about, resource=f"in {hand.action or 'nothing'}"
                    )
        for status in self.world.network.held():
            told = "; ".join(map(str, (*status.holders, *status.waiters)))
            self.world.record("left", status.key.decode(), resource=f"after all: {told}")

    def judge(self, began: float) -> Result:
        history = self.world.history
        fenced = [event for event in history if not event.resource.startswith("unfenced")]
        unfenced = [event for event in history if event.resource.startswith("unfenced")]
        alone = [event for event in fenced if event.what == "disturbed" or _is_alone(event)]
        return Result(
            cycles=self.world.tally,
            faults=self.faults,
            violations=check(fenced) + check_liveness(alone, BOUND) + check_all(fenced),
            stale=len(list(check_writes(unfenced))),
            virtual=self.engine.now,
            real=time.process_time() - began,
            digest=digest(history),
        )


def _is_alone(event: HistoryEvent) -> bool:
    return event.key in SINGLE


def digest(history: Sequence[HistoryEvent]) -> str:
    """The same for the same history, in whichever process."""
    return sha256("\n".join(map(str, history)).encode()).hexdigest()


@contextmanager
def quiet() -> Generator[None]:
    """Lost leases and dropped ones are what a simulation is made of.

    Nor does the garbage collector end leases at a time of its own.
    """
    log = logging.getLogger("dibs")
    level, collects = log.level, gc.isenabled()
    log.setLevel(logging.CRITICAL + 1)
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            warnings.simplefilter("ignore", CapacityWarning)
            yield
    finally:
        log.setLevel(level)
        if collects:
            gc.enable()


class Numbered:
    """In the stead of ids that were drawn."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers = count()

    def pop(self) -> str:
        return f"{self._seed}-{next(self._numbers)}"


@contextmanager
def repeatable(seed: int, simulation: Simulation) -> Generator[None]:
    """What the product draws at random is drawn from the simulation's dice."""
    drawn = simulation.draw.uniform
    with ExitStack() as stack:
        stack.enter_context(patch("dibs.locks.requests._drawn", Numbered(seed)))
        for name, module in sorted(sys.modules.items()):
            if name.startswith("dibs.") and hasattr(module, "uniform"):
                stack.enter_context(patch(f"{name}.uniform", drawn))
        yield


def simulate(
    seed: int,
    cycles: int = RUN,
    bug: str | None = None,
    kinds: Sequence[str] = tuple(ACTIONS),
) -> Result:
    """One history; the same seed is the same history. `bug` names one of `BUGS`."""
    planted = BUGS[bug] if bug is not None else Bug()
    kinds = planted.kinds or kinds
    with quiet():
        with planted.planted():
            simulation = Simulation(seed, planted, kinds)
            with repeatable(seed, simulation):
                result = simulation.run(cycles)
        del simulation
        gc.collect()  # what it leaves is no news to anybody
    return result
