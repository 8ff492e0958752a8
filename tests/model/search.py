"""The search: every state that a small world can come to, and the way to the first one that is wrong."""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from dibs.core import ledger, transition
from tests.model.size import World
from tests.model.steps import TIME, Label, Steps
from tests.model.world import State, part

MOST = 400_000
"""More states than this aren't a small world any more."""


@dataclass
class Search:
    """What a search found."""

    world: World
    states: list[State] = field(default_factory=list)
    cames: list[tuple[int, Label]] = field(default_factory=list)
    """For each state the one it was first reached from, and how."""
    edges: array[int] = field(default_factory=lambda: array("l"))
    """from, to, actor; only where liveness is asked for."""
    seen: Counter[str] = field(default_factory=Counter)
    flaw: str | None = None

    def trace(self, at: int) -> str:
        """How the world comes to a state, one step a line."""
        lines = []
        while at:
            before, label = self.cames[at]
            lines.append("  " + " ".join(str(word) for word in label))
            at = before
        return "\n".join(reversed(lines))


@contextmanager
def tuned(world: World) -> Iterator[None]:
    """The ledger's own durations in whole ticks."""
    with (
        patch.object(transition, "claim_timeout", lambda ttl: world.window),
        patch.object(transition, "TOMBSTONE_TTL", world.tombstone),
        patch.object(ledger, "TOMBSTONE_TTL", world.tombstone),
    ):
        yield


def explore(world: World) -> Search:
    """Breadth first, until there is nothing new or something is wrong."""
    found = Search(world)
    with tuned(world):
        _explore(found, Steps(world))
    if found.flaw is None and world.liveness:
        _look_for_the_stuck(found)
    return found


def _explore(found: Search, steps: Steps) -> None:
    start = found.world.start()
    numbers = {start: 0}
    found.states.append(start)
    found.cames.append((0, ()))
    todo = deque([0])
    while todo:
        here = todo.popleft()
        for step in steps(found.states[here]):
            there = numbers.get(step.state)
            if there is None:
                there = numbers[step.state] = len(found.states)
                found.states.append(step.state)
                found.cames.append((here, step.label))
                todo.append(there)
                _note(found, step.state, step.label)
            if step.flaw is not None:
                found.cames[there] = (here, step.label)
                found.flaw = f"{step.flaw}, in {found.world.name}:\n{found.trace(there)}"
                return
            if found.world.liveness:
                found.edges.extend((here, there, step.actor))
        assert len(found.states) <= MOST, f"{found.world.name} is no small world"


def _note(found: Search, state: State, label: Label) -> None:
    """Count what happened, so that a world which proves nothing is noticed."""
    for word in label:
        if isinstance(word, tuple) and word and word[0] in _TELLING:
            found.seen[word[0]] += 1
    found.seen[str(label[0])] += 1
    believers = sum(client.believes for client in state.clients)
    found.seen[f"{believers} believe"] += 1
    found.seen["stale believer's write"] += _would_write_late(state)


_TELLING = frozenset(
    {"granted", "renewed", "queued", "refused", "gone", "lost", "released", "believed"}
)


def _would_write_late(state: State) -> bool:
    """Some client that has lost its lease would, if it went on regardless, write after a newer one."""
    return any(
        client.mode == "lost" and client.token < max(state.ghost.written, default=0)
        for client in state.clients
    )


# ---- liveness -------------------------------------------------------------------------------------


def _look_for_the_stuck(found: Search) -> None:
    """From every state in which a client waits, it gets its turn even if all others have died."""
    for i in range(len(found.world.ids)):
        ways = _ways_back(found, lambda actor, i=i: actor in (i, TIME))  # type: ignore[misc]
        todo = [at for at, state in enumerate(found.states) if state.clients[i].believes]
        fine = bytearray(len(found.states))
        for at in todo:
            fine[at] = 1
        while todo:
            for before in ways.get(todo.pop(), ()):
                if not fine[before]:
                    fine[before] = 1
                    todo.append(before)
        for at, state in enumerate(found.states):
            if not fine[at] and _waits(state, i):
                found.flaw = f"{'ABC'[i]} waits for ever in {found.world.name}:\n{found.trace(at)}"
                return


def _ways_back(found: Search, counts: Callable[[int], bool]) -> dict[int, list[int]]:
    ways: dict[int, list[int]] = {}
    edges = found.edges
    for at in range(0, len(edges), 3):
        if counts(edges[at + 2]):
            ways.setdefault(edges[at + 1], []).append(edges[at])
    return ways


def _waits(state: State, i: int) -> bool:
    """It asks or queues, and its id has not ended (by its own silence, say)."""
    client = state.clients[i]
    if client.mode not in ("asking", "queued"):
        return False
    own = f"{'ABC'[i]}{client.born}"
    entry = next((e for e in state.book.entries if part(e, "id") == own), None)
    if entry is None:
        return client.mode == "asking" or (client.call or ("",))[0] == "acquire"
    return entry[0] == "place" and bool(part(entry, "expires") > 0)
