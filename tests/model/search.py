"""The search: every state that a small world can come to, and the way to the first one that is wrong."""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from dibs.core import ledger, transition
from tests.model.size import World
from tests.model.steps import TIME, Label, Step, Steps
from tests.model.world import State, part

MOST = 400_000
"""More states than this aren't a small world any more."""


@dataclass
class Search:
    states: list[Any] = field(default_factory=list)
    cames: list[tuple[int, Label]] = field(default_factory=list)
    """For each state the one it was first reached from, and how."""
    edges: array[int] = field(default_factory=lambda: array("l"))
    """from, to, actor; only where liveness is asked for."""
    seen: Counter[str] = field(default_factory=Counter)
    """What happened, so that a world which proves nothing is noticed."""
    flaw: str | None = None

    def trace(self, at: int) -> str:
        """How the world comes to a state, one step a line."""
        lines = []
        while at:
            before, label = self.cames[at]
            lines.append("  " + " ".join(str(word) for word in label))
            at = before
        return "\n".join(reversed(lines))

    def run(
        self,
        start: Any,
        steps: Callable[[Any], Iterator[Step]],
        note: Callable[[Any, Label], None],
        *,
        edges: bool = False,
    ) -> None:
        """Breadth first, until there is nothing new or something is wrong."""
        numbers = {start: 0}
        self.states.append(start)
        self.cames.append((0, ()))
        todo = deque([0])
        while todo:
            here = todo.popleft()
            for step in steps(self.states[here]):
                there = numbers.get(step.state)
                if there is None:
                    there = numbers[step.state] = len(self.states)
                    self.states.append(step.state)
                    self.cames.append((here, step.label))
                    todo.append(there)
                    note(step.state, step.label)
                if step.flaw is not None:
                    self.cames[there] = (here, step.label)
                    self.flaw = f"{step.flaw}:\n{self.trace(there)}"
                    return
                if edges:
                    self.edges.extend((here, there, step.actor))
            assert len(self.states) <= MOST, "this is no small world"


@contextmanager
def tuned(world: World) -> Iterator[None]:
    """The ledger's own durations in whole ticks."""
    with (
        patch.object(transition, "claim_timeout", lambda ttl: world.window),
        patch.object(transition, "TOMBSTONE_TTL", world.tombstone),
        patch.object(ledger, "TOMBSTONE_TTL", world.tombstone),
    ):
        yield


_TELLING = frozenset(
    {"granted", "renewed", "queued", "refused", "gone", "lost", "released", "believed"}
)


def explore(world: World) -> Search:
    found = Search()

    def note(state: State, label: Label) -> None:
        for word in label:
            if isinstance(word, tuple) and word and word[0] in _TELLING:
                found.seen[word[0]] += 1
        found.seen[str(label[0])] += 1
        found.seen["two"] += sum(client.believes for client in state.clients) == 2
        newest = max(state.ghost.written, default=0)
        # Some client that has lost its lease would, if it went on regardless, write after a newer one.
        found.seen["stale"] += any(c.mode == "lost" and c.token < newest for c in state.clients)

    with tuned(world):
        found.run(world.start(), Steps(world), note, edges=world.liveness)
    if found.flaw is None and world.liveness:
        found.flaw = _stuck(found, len(world.ids))
    return found


# ---- liveness -------------------------------------------------------------------------------------


def _stuck(found: Search, clients: int) -> str | None:
    """From every state in which a client waits, it gets its turn even if all others have died."""
    for i in range(clients):
        ways = _ways_back(found, (i, TIME))
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
                return f"{'ABC'[i]} waits for ever:\n{found.trace(at)}"
    return None


def _ways_back(found: Search, actors: tuple[int, ...]) -> dict[int, list[int]]:
    ways: dict[int, list[int]] = {}
    edges = found.edges
    for at in range(0, len(edges), 3):
        if edges[at + 2] in actors:
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
