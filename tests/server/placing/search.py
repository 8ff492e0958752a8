"""Going through a world of the model: all of it, as much as there is time for, or along chances."""

import random
import time
from collections import deque
from dataclasses import dataclass, field

from tests.server.placing.states import State, World, canonical
from tests.server.placing.steps import Flaw, Steps

MOST = 900_000


@dataclass
class Found:
    """What the search found."""

    states: int = 0
    flaw: str | None = None
    trace: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """What has happened at all."""


def is_good(s: State) -> bool:
    """All is done, and everybody had their turn."""
    return s.home.phase == "settled" and not s.moves and not any(c.sessions for c in s.clients)


def explore(world: World, *, liveness: bool = True) -> Found:
    """Breadth first, until there is nothing new or something is wrong."""
    steps, start = Steps(world), world.start()
    numbers, cames = {start: 0}, [(0, "")]
    todo, found = deque([start]), Found()
    before: list[list[int]] = [[]]
    good: list[int] = []
    while todo:
        state = todo.popleft()
        here = numbers[state]
        if is_good(state):
            good.append(here)
        try:
            for label, after in steps.next(state):
                found.seen.add(label)
                after = canonical(after)
                number = numbers.get(after)
                if number is None:
                    number = numbers[after] = len(cames)
                    cames.append((here, label))
                    before.append([])
                    todo.append(after)
                if liveness:
                    before[number].append(here)
        except Flaw as flaw:
            found.flaw, found.trace = flaw.args[0], [*_trace(cames, here), flaw.args[1]]
            break
        assert len(cames) < MOST, "this is no small world any more"
    found.states = len(cames)
    if found.flaw is None and liveness:
        stuck = _stuck(before, good)
        if stuck is not None:
            found.flaw, found.trace = "stuck for ever", _trace(cames, stuck)
    return found


@dataclass(frozen=True)
class Swept:
    """How far a sweep has come."""

    states: int
    depth: int
    """How many steps lead to the last of them at most."""
    is_all: bool
    """There is nothing beyond."""


def sweep(world: World, most: int, seconds: float) -> Swept:
    """Breadth first, of a world too large to remember the way to each. Raises `Flaw`.

    Ends when there is nothing new, after so many states, or after so long.
    """
    steps, level, depth = Steps(world), [world.start()], 0
    seen, end = {hash(level[0])}, time.monotonic() + seconds
    while level:
        following: list[State] = []
        for state in level:
            for _, after in steps.next(state):
                after = canonical(after)
                if hash(after) not in seen:
                    seen.add(hash(after))
                    following.append(after)
            if len(seen) >= most or time.monotonic() > end:
                return Swept(len(seen), depth, is_all=False)
        depth += bool(following)
        level = following
    return Swept(len(seen), depth, is_all=True)


def walk(world: World, seed: int, longest: int = 400) -> list[str]:
    """One way through a world, by chance, to where nothing can happen any more. Raises `Flaw`."""
    steps, state, chance = Steps(world), world.start(), random.Random(seed)
    path: list[str] = []
    while len(path) < longest and (found := list(steps.next(state))):
        label, state = chance.choice(found)
        path.append(label)
    return path


def _stuck(before: list[list[int]], good: list[int]) -> int | None:
    """A state from which nothing good can be reached."""
    reached, todo = set(good), list(good)
    while todo:
        for each in before[todo.pop()]:
            if each not in reached:
                reached.add(each)
                todo.append(each)
    return next((n for n in range(len(before)) if n not in reached), None)


def _trace(cames: list[tuple[int, str]], at: int) -> list[str]:
    lines = []
    while at:
        at, label = cames[at]
        lines.append(label)
    return lines[::-1]
