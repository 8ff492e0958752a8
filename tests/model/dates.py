"""Small worlds of two processes over one cell, whose answers carry the date of the server that gave them.

What is run is the adapter's own: `CasLedger._attempt`, with its `StoreClock` and `Sightings`. The steps of
`CasLedger._apply_until_swapped` are taken one at a time here, so that time, other processes and failures
come between.
All clocks run alike (`DRIFT` is 0, and `tests/core/test_store_clock.py` looks at rates), so that every end
is exact and a tick too early is noticed. Times are absolute, and a world ends after some ticks.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from dibs.model import Acquire, Command, Gone, Granted, Lost, Refused, Release, Renew, Reply
from dibs.stores.cas import clock as cas_clock
from dibs.stores.cas.calls import KeyCalls
from dibs.stores.cas.cells import Cell
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.ledger import EMPTY, CasLedger
from tests.model.search import Search
from tests.model.steps import Label, Step

KEY = b"lock:k"
OWN = (0, 5_000_000)
"""What the processes' own clocks show when the world begins."""
EPOCH = 1_000_000
"""And the first server's."""

type Seen = tuple[tuple[str, Any], ...]
type Bounds = tuple[tuple[str, Any], ...]
type Stored = tuple[int, str]
"""A cell: its version, and the book as text; version 0 and no text if it does not exist."""
type Call = tuple[Any, ...]
"""acquire, renew or release; the id; ttl, or retain and tombstone"""

NOTHING: Stored = (0, "")
UNKNOWN: Bounds = ()


@dataclass(frozen=True)
class DatedWorld:
    name: str
    horizon: int = 10
    ttl: int = 2
    skew: int = 1
    resolution: int = 2
    apart: tuple[int, ...] = (0, 1)
    """By how many ticks each server's clock is ahead of the first one's."""
    dated: tuple[bool, bool] = (True, True)
    """Whether the answers to each process carry a date."""
    loud: tuple[bool, bool] = (False, False)
    """A loud process's requests and answers are delayed, and given up; a calm one's calls are one step."""
    acquires: int = 1
    renewals: int = 1
    tries: tuple[int, int] = (0, 2)
    """Lone tries of a rival in the holder's process, and in the other one."""
    fresh: bool = True
    """Each try of the other process is made by a new one, that has seen nothing."""
    gives_up: int = 0
    """So many calls are given up without an answer."""
    contradicted: int = 0
    """So often the holder's process finds that the dates contradict each other, or no longer do."""
    retain: int = 0
    tombstone: int = 0
    copies: int = 0
    """So many copies of the holder's Acquire come by the other process once it has released."""
    releases: bool = False
    reaches: str = ""
    """What must happen in it, with commas."""
    at_sending: bool = False
    """A mistake: what an answer shows is seen when its request left."""


class Work(NamedTuple):
    """A command under way in a process: see `CasLedger._apply_until_swapped`."""

    call: Call
    sent: int
    is_current: bool = False
    request: int = 0
    """When the request left."""
    swap: tuple[int, str] | None = None
    """The version that is compared, and what is written. None: it loads."""
    seen: Seen = ()
    """What will have been seen once the swap has succeeded."""
    reply: Reply | None = None
    """What will be answered then."""
    answer: tuple[int, bool, Stored] | None = None
    """The server's date, whether it has swapped, and the cell."""


class Process(NamedTuple):
    cell: Stored | None = None
    seen: Seen = ()
    bounds: Bounds = UNKNOWN
    work: Work | None = None


class State(NamedTuple):
    now: int = 0
    cell: Stored = NOTHING
    processes: tuple[Process, Process] = (Process(), Process())
    lost: tuple[tuple[int, str, Call, int], ...] = ()
    """Swaps that nobody waits for any more, and that may arrive yet."""
    believers: tuple[tuple[str, int], ...] = ()
    """Who may rely on its lease, and until when."""
    acquires: int = 0
    renewals: int = 0
    tries: tuple[int, int] = (0, 0)
    ids: int = 0
    gives_up: int = 0
    contradicted: int = 0
    copies: int = 0
    releases: int = 0
    closed: int = 0
    """Until then nobody else may be granted what was retained."""
    buried: int = 0
    """Until then the released id may not be granted."""


type Move = tuple[Label, State, str | None]
"""What happens, the state after it, and what is wrong with it."""

type Attempted = tuple[str | None, Reply, Seen, Seen]
"""A cell's new text (None: no change), the reply, and what has been seen: by what was read, and once it is
written."""


class DatedSteps:
    def __init__(self, world: DatedWorld) -> None:
        self.world = world
        self.seen: Counter[str] = Counter()
        self._known: dict[Any, Attempted] = {}

    # -- what a process does -----------------------------------------------------------------------

    def _clock_of(self, process: Process) -> StoreClock:
        store_clock = StoreClock(self.world.skew)
        vars(store_clock).update(process.bounds)
        return store_clock

    def attempt(self, process: Process, cell: Stored, call: Call, at: int) -> Attempted:
        """What `CasLedger._attempt` makes of a cell."""
        asked = (process.seen, process.bounds, cell, call, at)
        found = self._known.get(asked)
        if found is None:
            found = self._known[asked] = self._attempt(process, cell, call, at)
        return found

    def _attempt(self, process: Process, cell: Stored, call: Call, at: int) -> Attempted:
        store_clock, key = self._clock_of(process), KeyCalls()
        present = SimpleNamespace(now=lambda: at)  # its wall clock is of no use
        key.sightings._seen = dict(process.seen)
        adapter = CasLedger(None, present, store_clock, {})  # type: ignore[arg-type]
        version, text = cell
        read = Cell(version, json.loads(text) if text else None)
        attempt = adapter._attempt(KEY, key, read, [_command(call)], is_full=False)
        changed = attempt.state != (read.state or EMPTY)
        return (
            json.dumps(attempt.state) if changed else None,
            attempt.replies[0],
            tuple(sorted(key.sightings._seen.items())),
            tuple(sorted(attempt.sightings._seen.items())),
        )

    def _goes_on(self, state: State, p: int, work: Work) -> Move:
        """Until the process waits for an answer, or has its own."""
        process = state.processes[p]
        while process.cell is not None:
            at = OWN[p] + (work.request if self.world.at_sending and work.is_current else state.now)
            text, reply, seen, seen_later = self.attempt(process, process.cell, work.call, at)
            process = process._replace(seen=seen)
            if text is not None and process.cell is not None:
                swap = (process.cell[0], text)
                work = work._replace(
                    request=state.now, swap=swap, seen=seen_later, reply=reply, answer=None
                )
                process = process._replace(cell=None, work=work)
                return ("asks to swap",), _with(state, p, process), None
            if work.is_current:
                process = process._replace(work=None)
                return self._answered(_with(state, p, process), work, reply)
            process = process._replace(cell=None)
        work = work._replace(request=state.now, swap=None, answer=None)
        return ("asks to load",), _with(state, p, process._replace(work=work)), None

    def _served(self, state: State, p: int, member: int) -> tuple[State, str | None]:
        """A server answers what a process asks."""
        work = state.processes[p].work
        assert work is not None
        clock = EPOCH + state.now + self.world.apart[member]
        date = clock // self.world.resolution * self.world.resolution
        flaw, swapped = None, False
        if work.swap is not None and work.swap[0] == state.cell[0]:
            state, flaw = self._swapped(state, work.swap[1], work.call, work.sent)
            swapped = True
        elif work.swap is not None:
            self.seen["conflict"] += 1
        work = work._replace(answer=(date, swapped, state.cell))
        return _with(state, p, state.processes[p]._replace(work=work)), flaw

    def _swapped(self, state: State, text: str, call: Call, sent: int) -> tuple[State, str | None]:
        flaw = None
        old, new = (_holders(each) for each in (state.cell[1], text))
        for id_, token in new.items():
            if old.get(id_) != token:
                if state.now < state.closed:
                    flaw = f"{id_} is granted at {state.now} what is retained until {state.closed}"
                if id_ == "a" and state.now < state.buried:
                    flaw = f"a is granted at {state.now}, and is buried until {state.buried}"
        if call[0] == "release":
            if _is_retained(text) and not _is_retained(state.cell[1]):
                state = state._replace(closed=sent + call[2])
            state = state._replace(buried=sent + call[3])
        return state._replace(cell=(state.cell[0] + 1, text)), flaw

    def _hears(self, state: State, p: int) -> Move:
        process = state.processes[p]
        work = process.work
        assert work is not None
        assert work.answer is not None
        date, swapped, cell = work.answer
        if self.world.dated[p]:
            store_clock = self._clock_of(process)
            times = (OWN[p] + work.request, OWN[p] + state.now)
            store_clock.note(date, self.world.resolution, *times)
            process = process._replace(bounds=_kept(store_clock))
        if swapped:
            assert work.reply is not None
            assert work.swap is not None
            process = process._replace(
                cell=(work.swap[0] + 1, work.swap[1]), seen=work.seen, work=None
            )
            return self._answered(_with(state, p, process), work, work.reply)
        process = process._replace(cell=cell)
        return self._goes_on(_with(state, p, process), p, work._replace(is_current=True))

    def _answered(self, state: State, work: Work, reply: Reply) -> Move:
        """The caller has its answer, and relies on it from when it sent its command."""
        verb, id_, *_ = work.call
        said = type(reply).__name__.lower()
        self.seen[f"{id_[0]} {said}"] += 1
        flaw = None
        if isinstance(reply, Granted) or (verb == "renew" and not isinstance(reply, Lost)):
            until = work.sent + self.world.ttl
            others = tuple(each for each in state.believers if each[0] != id_)
            if until > state.now:
                state = state._replace(believers=tuple(sorted((*others, (id_, until)))))
            if len(state.believers) > 1:
                flaw = f"two believers: {state.believers} at {state.now}"
        elif verb != "release":
            assert isinstance(reply, Refused | Gone | Lost), reply
        return (id_, said), state, flaw

    # -- what can happen ---------------------------------------------------------------------------

    def __call__(self, state: State) -> Iterator[Step]:
        for label, after, flaw in self._raw(state):
            step = Step((f"{state.now}:", *label), 0, after, flaw)  # type: ignore[arg-type]
            if flaw is not None:
                yield step
            elif after.now < self.world.horizon:
                after = self._plain(after)
                if after.lost or any(not self._is_done(after, p) for p in range(2)):
                    yield step._replace(state=after)  # type: ignore[arg-type]

    def _plain(self, state: State) -> State:
        """The same state without what makes no difference any more."""
        lost = tuple(each for each in state.lost if each[0] == state.cell[0])
        state = state._replace(lost=lost)
        for p, process in enumerate(state.processes):
            if process.work is None and (self._is_done(state, p) or (p == 1 and self.world.fresh)):
                state = _with(state, p, Process())
            elif process.seen:
                longest = max(self.world.ttl, self.world.retain, self.world.tombstone)
                long_ago = OWN[p] + state.now - longest
                seen = tuple((id_, (mark, max(at, long_ago))) for id_, (mark, at) in process.seen)
                state = _with(state, p, process._replace(seen=seen))
        return state

    def _is_done(self, state: State, p: int) -> bool:
        world = self.world
        if state.processes[p].work is not None or state.tries[p] < world.tries[p]:
            return False
        if p == 1:
            return not world.copies or state.copies == world.copies
        has_released = state.releases == world.acquires or not world.releases
        holds = any(id_ == "a" for id_, _ in state.believers)
        may_renew = holds and state.renewals < world.renewals
        return state.acquires == world.acquires and has_released and not may_renew

    def _raw(self, state: State) -> Iterator[Move]:
        later = state.now + 1
        alive = tuple(each for each in state.believers if each[1] > later)
        yield ("tick",), state._replace(now=later, believers=alive), None
        for p in range(2):
            work = state.processes[p].work
            if work is None:
                for start, call in self._starts(state, p):
                    yield from self._begins(start, p, call)
            elif work.answer is None:
                for member in range(len(self.world.apart)):
                    served, flaw = self._served(state, p, member)
                    yield (p, "is served by", member), served, flaw
            else:
                yield _named((p, "hears"), self._hears(state, p))
            if work is not None and state.gives_up < self.world.gives_up:
                yield self._gives_up(state, p, work)
        for number, (version, text, call, sent) in enumerate(state.lost):
            rest = state._replace(lost=state.lost[:number] + state.lost[number + 1 :])
            if version == state.cell[0]:
                self.seen["late swap"] += 1
                after, flaw = self._swapped(rest, text, call, sent)
                yield ("late swap", call), after, flaw
        if state.contradicted < self.world.contradicted:
            yield self._contradiction(state)

    def _begins(self, state: State, p: int, call: Call) -> Iterator[Move]:
        begun = _named((p, "begins", call), self._goes_on(state, p, Work(call, state.now)))
        if self.world.loud[p]:
            yield begun
            return
        for member in range(len(self.world.apart)):
            label, after, flaw = begun
            while after.processes[p].work is not None and flaw is None:
                after, flaw = self._served(after, p, member)
                if flaw is None:
                    more, after, flaw = self._hears(after, p)
                    label = (*label, *more)
            yield (*label, "by", member), after, flaw

    def _starts(self, state: State, p: int) -> Iterator[tuple[State, Call]]:
        world, believing = self.world, [id_ for id_, _ in state.believers]
        holds = "a" in believing
        if p == 0 and not holds and state.acquires < world.acquires:
            yield state._replace(acquires=state.acquires + 1), ("acquire", "a", world.ttl)
        if p == 0 and holds and state.renewals < world.renewals:
            yield state._replace(renewals=state.renewals + 1), ("renew", "a", world.ttl)
        if p == 0 and world.releases and state.releases < state.acquires:
            rest = tuple(each for each in state.believers if each[0] != "a")
            gone = state._replace(releases=state.acquires, believers=rest)
            yield gone, ("release", "a", world.retain, world.tombstone)
        if p == 1 and state.releases and state.copies < world.copies:
            yield state._replace(copies=state.copies + 1), ("acquire", "a", world.ttl)
        if state.tries[p] < world.tries[p]:
            tries = state.tries
            trying = state._replace(tries=(tries[0] + (p == 0), tries[1] + (p == 1)))
            if p == 1 and world.fresh:
                trying = _with(trying, 1, Process())
            name = f"{'cb'[p]}{state.ids}"
            if name not in believing:
                yield trying, ("acquire", name, world.ttl)

    def _gives_up(self, state: State, p: int, work: Work) -> Move:
        """No answer came in time, or its caller was cancelled."""
        process = state.processes[p]._replace(cell=None, work=None)
        after = _with(state, p, process)._replace(gives_up=state.gives_up + 1, ids=state.ids + 1)
        if work.swap is not None and work.answer is None:
            orphan = (*work.swap, work.call, work.sent)
            after = after._replace(lost=tuple(sorted((*after.lost, orphan))))
        return (p, "gives up"), after, None

    def _contradiction(self, state: State) -> Move:
        process = state.processes[0]
        store_clock = self._clock_of(process)
        store_clock.disagreement = 0.0 if store_clock.disagreement > self.world.skew else 1e9
        process = process._replace(bounds=_kept(store_clock))
        after = _with(state, 0, process)._replace(contradicted=state.contradicted + 1)
        return ("the dates are taken", store_clock.is_dated), after, None


def _command(call: Call) -> Command:
    match call:
        case ("acquire", id_, ttl):
            return Acquire(KEY, id_, id_, ttl)
        case ("renew", id_, ttl):
            return Renew(KEY, id_, ttl)
        case ("release", id_, retain, tombstone):
            return Release(KEY, id_, retain, tombstone)
    raise AssertionError(call)


def _holders(text: str) -> dict[str, int]:
    entries = json.loads(text)["entries"] if text else ()
    return {
        each["id"]: each["token"]
        for each in entries
        if each["is"] == "hold" and each.get("state") != "retained"
    }


def _is_retained(text: str) -> bool:
    return '"state": "retained"' in text


def _named(label: Label, step: Move) -> Move:
    return (*label, *step[0]), step[1], step[2]


def _with(state: State, p: int, process: Process) -> State:
    one, two = state.processes
    return state._replace(processes=(process, two) if p == 0 else (one, process))


def _kept(clock: StoreClock) -> Bounds:
    """All that it knows; since when makes no difference without drift."""
    return tuple((vars(clock) | {"_at": 0.0}).items())


def explore(world: DatedWorld, steps: Callable[[DatedWorld], DatedSteps] = DatedSteps) -> Search:
    found, taken = Search(), steps(world)
    found.seen = taken.seen
    with patch.object(cas_clock, "DRIFT", 0):
        found.run(State(), taken, lambda state, label: None)
    return found


# ---- worlds ---------------------------------------------------------------------------------------

LONE_TRIES = DatedWorld(
    "lone tries of fresh processes",
    horizon=9,
    loud=(True, False),
    reaches="a granted, a renewed, b refused, b granted",
)

WATCHER = DatedWorld(
    "a process that tries again and again",
    horizon=6,
    fresh=False,
    loud=(False, True),
    tries=(0, 2),
    reaches="a renewed, b refused, b granted, conflict",
)

RIVALS = DatedWorld(
    "a rival in the holder's process, and calls that are given up",
    horizon=6,
    loud=(True, False),
    apart=(0,),
    renewals=2,
    tries=(1, 0),
    gives_up=1,
    reaches="a renewed, c refused, c granted, late swap",
)

MIXED = DatedWorld(
    "a holder that knows the dates now and then",
    horizon=12,
    apart=(0,),
    renewals=2,
    contradicted=2,
    reaches="a renewed, b refused, b granted",
)

UNDATED_HOLDER = DatedWorld(
    "a holder that knows no dates, and a process that does",
    horizon=9,
    dated=(False, True),
    renewals=2,
    fresh=False,
    reaches="a renewed, b refused, b granted",
)

RETAINED = DatedWorld(
    "a task that may not start again too soon",
    horizon=10,
    releases=True,
    retain=3,
    renewals=0,
    tries=(0, 2),
    reaches="a released, b refused, b granted",
)

RETAINED_UNDATED = replace(
    RETAINED,
    name="a task in a store without dates, seen before its last renewal",
    renewals=1,
    fresh=False,
    apart=(0,),
    dated=(False, False),
)

BURIED = DatedWorld(
    "a released id that is asked for again",
    horizon=6,
    apart=(0,),
    releases=True,
    tombstone=2,
    renewals=0,
    gives_up=1,
    tries=(0, 0),
    copies=2,
    loud=(True, False),
    reaches="a released, a gone, a granted, late swap",
)

AGAIN = DatedWorld(
    "an id that is acquired again",
    horizon=7,
    apart=(0,),
    releases=True,
    acquires=2,
    renewals=0,
    fresh=False,
    tries=(0, 2),
    reaches="a granted, b refused, b granted",
)

DATED_WORLDS = [value for value in list(globals().values()) if isinstance(value, DatedWorld)]
