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
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from dibs.errors import CapacityWarning
from dibs.testing import Violation, check, check_liveness
from dibs.testing.checker import check_writes
from tests.torture.actions import ACTIONS, Action
from tests.torture.bugs import BUGS, Bug
from tests.torture.engine import Process
from tests.torture.hand import Hand
from tests.torture.kinds import Here
from tests.torture.network import CALM
from tests.torture.promises import STEP, check_all
from tests.torture.simruntime import SimRuntime
from tests.torture.world import World

CLIENTS = 10
HANDS = 4
"""Tasks of each client."""
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


class Life:
    def __init__(self, process: Process, world: World, kinds: Sequence[str]) -> None:
        self.process = process
        self.world = world
        self.runtime = SimRuntime(process, world.network)
        self.leases = 0
        self.primitives: dict[Any, Any] = {}
        """Those that its hands share."""
        self._kinds = kinds
        self._weights = [ACTIONS[kind][1] for kind in kinds]
        self.hands = [Hand(self, number) for number in range(HANDS)]
        for hand in self.hands:
            process.spawn(hand.live())

    def draw_action(self) -> tuple[str, Action]:
        name = self.world.engine.random.choices(self._kinds, self._weights)[0]
        return name, ACTIONS[name][0]

    def shared(self, make: Any, *about: Any, **options: Any) -> Any:
        name = make, about, tuple(options.items())
        found = self.primitives.get(name)
        if found is None:
            found = self.primitives[name] = make(*about, **options)
            for each in (found, *vars(found).values()):
                if isinstance(each, Here):
                    each.runtime = self.runtime
        return found

    def stop(self, seconds: float) -> None:
        """As SIGSTOP does; SIGCONT comes later."""
        self._disturbed(None)
        self.process.pause(seconds)
        self.world.engine.at(self.process.paused_until, self._disturbed)

    def die(self) -> None:
        """As kill -9 does."""
        self._disturbed(None)
        self.process.die()

    def cancel(self) -> str:
        """Interrupt one hand in what it does; tell what that was."""
        hand = self.world.engine.random.choice(self.hands)
        if hand.task is not None and hand.action:
            hand.task.cancel()
        return hand.action

    def _disturbed(self, _: object) -> None:
        keys = dict.fromkeys(key for hand in self.hands for key in hand.keys)
        for key in keys or ("",):
            self.world.record("disturbed", key, process=self.process.number)


@dataclass
class Result:
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
    def __init__(
        self, seed: int, bug: Bug | None = None, kinds: Sequence[str] = tuple(ACTIONS)
    ) -> None:
        self.world = World(seed)
        self.engine = self.world.engine
        self.draw = self.engine.random
        planted = bug or Bug()
        planted.plant_in(self.world.network)
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
        match kind:
            case "kill":
                self.lives[number].die()
                self.lives[number] = self.be_born()
            case "stop":
                self.lives[number].stop(self.draw.choice((0.3, 2.0, 12.0)))
            case "away":
                self.world.away_since = self.engine.now
                self.world.network.away_until = self.engine.now + self.draw.uniform(0, OUTAGE)
            case "step":
                self.faults[kind] += self.set_forward()
            case _:
                self.faults[kind] += bool(self.lives[number].cancel())
        self.faults[kind] += kind in ("kill", "stop", "away")
        self.engine.at(self.engine.now + self.draw.expovariate(1 / 2), self.strike)

    def set_forward(self) -> bool:
        """The store's clock, by less than the smallest margin is within any lease's time."""
        if self.engine.now < self.stepped + 15:
            return False
        self.stepped = self.engine.now
        self.engine.clock.advance(self.draw.uniform(0, STEP))
        return True

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
        alone = [event for event in fenced if event.what == "disturbed" or event.key in SINGLE]
        return Result(
            cycles=self.world.tally,
            faults=self.faults,
            violations=check(fenced) + check_liveness(alone, BOUND) + check_all(fenced),
            stale=len(list(check_writes(unfenced))),
            virtual=self.engine.now,
            real=time.process_time() - began,
            digest=sha256("\n".join(map(str, history)).encode()).hexdigest(),
        )


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


@contextmanager
def repeatable(seed: int, simulation: Simulation) -> Generator[None]:
    """What the product draws at random is drawn from the simulation's dice."""
    drawn, numbers = simulation.draw.uniform, count()
    ids = SimpleNamespace(pop=lambda: f"{seed}-{next(numbers)}")
    with ExitStack() as stack:
        stack.enter_context(patch("dibs.locks.requests._drawn", ids))
        for name, module in sorted(sys.modules.items()):
            if name.startswith("dibs.") and hasattr(module, "uniform"):
                stack.enter_context(patch(f"{name}.uniform", drawn))
        yield


def simulate(
    seed: int, cycles: int = RUN, bug: str | None = None, kinds: Sequence[str] = tuple(ACTIONS)
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
