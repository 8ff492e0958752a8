"""Cohorts in virtual time: messages lost, late and doubled, clocks uneven, processes paused and killed.

The simulation of `tests.torture`, with several hands in each process that share its locks.
"""

from collections import Counter
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from leasehold.primitives.cohort_turn import Turn
from leasehold.primitives.kept import KeptLease
from leasehold.testing import Event
from tests.torture.engine import Process, Task
from tests.torture.life import TTLS, Life, Resources, SimLease, SimPrimitive
from tests.torture.network import Network
from tests.torture.simruntime import SimRuntime
from tests.torture.simulate import RATES, Result, Simulation, quiet

HANDS = 4
COHORT = 5
CYCLES = 6_000
NAMES = ("a", "b", "c")


class SharedLease(SimLease):
    """It may be renewed before its holder has it, and then there is nothing to record yet."""

    def note(self, *about: Any, **more: Any) -> None:
        """Nobody believes in it yet."""


class SharedLock(SimPrimitive):
    """A lock with a cohort."""

    _lease_type = SharedLease
    _can_be_shared: ClassVar[bool] = True

    def __init__(self, name: str, ttl: float, runtime: SimRuntime) -> None:
        super().__init__(name, 1, ttl, runtime)
        self._cohort = COHORT


class SharedRuntime(SimRuntime):
    """One process's way to the store, for several hands."""

    def __init__(self, process: Process, network: Network) -> None:
        super().__init__(process, network)
        self.cohorts: dict[Any, Any] = {}
        self.running: object = None

    def me(self) -> object:
        return self.running


class HandTask(Task):
    """A coroutine of one hand; whoever asks who is running is told."""

    __slots__ = ("_hand",)

    def __init__(self, hand: "Hand") -> None:
        super().__init__(hand.live())
        self._hand = hand

    def step(self, value: Any) -> None:
        self._hand.shared.running = self._hand
        super().step(value)


class Hand(Life):
    """One of several who share a process, and so its runtime."""

    def __init__(self, number: int, crew: "Crew", like: tuple[Any, ...]) -> None:
        self.process, _, self.resources, self.history, self.tally = like
        self.engine = self.process.engine
        self.draw = self.process.engine.random
        self.runtime = self.shared = crew.runtime
        self.key = ""
        self._primitives: dict[tuple[str, float], SimPrimitive] = {}
        self._lease: SimLease | None = None
        self._numbers = number * 1_000_000
        HandTask(self).step(None)

    def primitive(self, name: str, ttl: float) -> SimPrimitive:
        """Whatever was drawn: names and ttls are few, so that hands meet."""
        name, ttl = self.draw.choice(NAMES), self.draw.choice(TTLS[:2])
        found = self._primitives.get((name, ttl))
        if found is None:
            found = self._primitives[name, ttl] = SharedLock(name, ttl, self.runtime)
        return found


class Crew:
    """One process from its start to its death."""

    def __init__(
        self,
        process: Process,
        network: Network,
        resources: Resources,
        history: list[Event],
        tally: Counter[str],
    ) -> None:
        self.runtime = SharedRuntime(process, network)
        like = process, network, resources, history, tally
        self.hands = [Hand(number, self, like) for number in range(HANDS)]

    def stop(self, seconds: float) -> None:
        self.hands[0].stop(seconds)

    def die(self) -> None:
        for hand in self.hands:
            hand.die()


class SharedSimulation(Simulation):
    """Fewer processes, with more hands in each."""

    def be_born(self) -> Any:
        rate = 1 + self.draw.uniform(-RATES, RATES)
        self.past += 1
        process = Process(self.engine, self.past, rate, self.draw.uniform(-1e4, 1e4))
        return Crew(process, self.network, self.resources, self.history, self.tally)


def simulate(seed: int, cycles: int) -> tuple[Result, int]:
    """One history, and how often a hold was passed on in it."""
    simulation = SharedSimulation(seed)
    numbers, passed = iter(range(1 << 60)), 0
    pass_on = Turn.pass_on

    def counted(turn: Turn, lease: KeptLease) -> bool:
        nonlocal passed
        done = pass_on(turn, lease)
        passed += done
        return done

    ids = patch("leasehold.primitives.acquire.new_id", lambda: f"{seed}-{next(numbers)}")
    with quiet(), ids, patch.object(Turn, "pass_on", counted):
        return simulation.run(cycles), passed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_promise_is_broken_by_passing_holds_on(seed: int) -> None:
    result, passed = simulate(seed, CYCLES)
    assert result.violations == []
    assert passed > CYCLES / 10
    assert result.stale > 0, "no fault bit"
    assert sum(result.faults.values()) > 50
