"""Runs the simulation: many clients, one store, bad weather, and a verdict on the history."""

import logging
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from leasehold.testing import Event, Violation, check, check_liveness
from leasehold.testing.checker import check_writes
from tests.torture.bugs import BUGS, Bug
from tests.torture.engine import Engine, Process
from tests.torture.life import Life, Resources
from tests.torture.network import Network, Weather

CLIENTS = 16
RATES = 0.009
"""Clients' clocks run this much off at most; the promise allows for 1 %."""
OUTAGE = 3.0
BOUND = 10 + 30 + 5 + OUTAGE + 2
"""Seconds within which a free key reaches a waiter: ttl + patience + window, and slack."""
RUN = 20_000
"""Cycles in one history."""


@dataclass
class Result:
    """What came of a run."""

    cycles: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    stale: int = 0
    """Writes that only the unfenced resource took: the faults bit."""
    virtual: float = 0.0
    real: float = 0.0

    def add(self, other: "Result") -> None:
        self.cycles += other.cycles
        self.faults += other.faults
        self.violations += other.violations
        self.stale += other.stale
        self.virtual += other.virtual
        self.real += other.real


class Simulation:
    """One store and all its clients."""

    def __init__(self, seed: int, bug: Bug | None = None) -> None:
        self.engine = Engine(seed)
        self.draw = self.engine.random
        self.network = Network(self.engine, Weather())
        if bug is not None and bug.store is not None:
            bug.store(self.network)
        self.rates = RATES if bug is None else max(RATES, bug.rates)
        self.resources = Resources()
        self.history: list[Event] = []
        self.faults: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        self.past = 0
        self.lives = [self.be_born() for _ in range(CLIENTS)]
        self.engine.at(1.0, self.strike)

    def be_born(self) -> Life:
        rate = 1 + self.draw.uniform(-self.rates, self.rates)
        self.past += 1
        process = Process(self.engine, self.past, rate, self.draw.uniform(-1e4, 1e4))
        return Life(process, self.network, self.resources, self.history, self.tally)

    def strike(self, _: object) -> None:
        """Something bad happens every few seconds."""
        kind = self.draw.choice(("kill", "kill", "stop", "stop", "stop", "away"))
        self.faults[kind] += 1
        number = self.draw.randrange(CLIENTS)
        if kind == "kill":
            self.lives[number].die()
            self.lives[number] = self.be_born()
        elif kind == "stop":
            self.lives[number].stop(self.draw.choice((0.3, 2.0, 12.0)))
        else:
            self.network.away_until = self.engine.now + self.draw.uniform(0, OUTAGE)
        self.engine.at(self.engine.now + self.draw.expovariate(1 / 5), self.strike)

    def run(self, cycles: int) -> Result:
        began, tally = time.process_time(), self.tally
        self.engine.run(lambda: tally["cycles"] < cycles)
        for life in self.lives:
            life.die()
        events = sorted(self.history, key=lambda event: event.at)
        fenced = [event for event in events if not event.resource.startswith("unfenced")]
        unfenced = [event for event in events if event.resource.startswith("unfenced")]
        return Result(
            cycles=tally["cycles"],
            faults=self.faults,
            violations=check(fenced) + check_liveness(fenced, BOUND),
            stale=len(list(check_writes(unfenced))),
            virtual=self.engine.now,
            real=time.process_time() - began,
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Lost leases and dropped ones are what a simulation is made of."""
    log = logging.getLogger("leasehold")
    level = log.level
    log.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
    log.setLevel(level)


def simulate(seed: int, cycles: int = RUN, bug: str | None = None) -> Result:
    """One history; the same seed is the same history. `bug` names one of `BUGS`."""
    planted = None if bug is None else BUGS[bug]
    simulation = Simulation(seed, planted)
    numbers = iter(range(1 << 60))
    ids = patch("leasehold.primitives.acquire.new_id", lambda: f"{seed}-{next(numbers)}")
    with quiet(), ids, (planted or Bug()).planted():
        return simulation.run(cycles)
