"""What came of a torture."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dibs.testing.checker import Violation
from dibs.testing.torture.plan import primitive_of

type Outcome = Literal["clean", "violation", "inconclusive"]

KILL = "kill"
PAUSES = (0.5, 1.0, 3.0)
"""How long a worker is stopped, in ttls."""


def pause_name(ttls: float) -> str:
    """What a pause of that length is called where faults are counted."""
    return f"pause {ttls:g}"


@dataclass
class Verdict:
    """Everything that was tried and found. `str` tells it in plain words."""

    url: str = ""
    """Without a password."""
    prefix: str = ""
    seed: int = 0
    processes: int = 0
    ttl: float = 0.0
    tasks: int = 1
    """Of each process."""
    threads: int = 0
    """So many processes used threads, the others asyncio."""
    resources: Mapping[str, int] = field(default_factory=dict[str, int])
    """So many of each primitive were contended for."""
    seconds: float = 0.0
    cycles: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    hit: Counter[str] = field(default_factory=Counter[str])
    """The faults that struck a process which held a lease."""
    hit_by: Counter[str] = field(default_factory=Counter[str])
    """The same by what it held, by primitive."""
    done: Counter[str] = field(default_factory=Counter[str])
    """The cycles of each primitive, as histories tell them."""
    grants: int = 0
    """As many tokens were seen."""
    writes: int = 0
    """By the fenced files accepted."""
    stale: int = 0
    """Writes under an old token that the unfenced files took."""
    violations: list[Violation] = field(default_factory=list[Violation])
    calm: float = 0.0
    """Seconds without faults, in which everybody had to be served."""
    handoffs: list[float] = field(default_factory=list[float], repr=False)
    """From a release to the next one's grant while nobody was disturbed."""
    takeovers: list[float] = field(default_factory=list[float], repr=False)
    """How long somebody waited for a free lock among faults."""
    outages: int = 0
    """Calls that were given up because the store was away."""
    lapses: int = 0
    """Looks, two a second, at which the store was away or slow, or this machine stood still."""
    trouble: str = ""
    """What kept the trial from being what it should have been."""
    wrote: str = ""
    """What processes wrote that ended by themselves."""
    ended_early: bool = False
    left: str = ""
    """What the store has yet to drop."""
    history: str = ""
    """The folder with what everybody recorded, kept if a promise was broken."""
    scope: str = ""

    def add(self, other: "Verdict") -> None:
        """Put another round to this."""
        for name in ("cycles", "grants", "writes", "stale", "calm", "outages", "lapses"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.hit += other.hit
        self.hit_by += other.hit_by
        self.done += other.done
        self.violations += other.violations
        self.handoffs += other.handoffs
        self.takeovers += other.takeovers
        self.trouble = self.trouble or other.trouble
        self.wrote = self.wrote or other.wrote
        self.history = self.history or other.history

    @property
    def outcome(self) -> Outcome:
        """`inconclusive`: nothing bad was seen, and it would not have been seen if it were there."""
        if self.violations:
            return "violation"
        return "inconclusive" if self.doubts else "clean"

    @property
    def doubts(self) -> list[str]:
        """Why nothing follows from having found nothing."""
        doubts = [self.trouble] if self.trouble else []
        if not self.cycles:
            return [*doubts, "no process completed a single cycle"]
        if not self.struck:
            return [*doubts, "no fault struck a process that held a lease"]
        if not self.stale:
            doubts.append("no late write reached the unfenced control, so the faults did not bite")
        spared = [each for each in self.resources if not self.hit_by[each]]
        if spared:
            doubts.append(f"no fault struck a holder of {', '.join(spared)}")
        return doubts

    def broken(self, primitive: str) -> list[Violation]:
        """The promises of one primitive that were broken."""
        return [each for each in self.violations if primitive_of(each.key) == primitive]

    def outcome_of(self, primitive: str) -> Outcome:
        """As `outcome`, for one primitive; whether late writes got anywhere is a question to all."""
        if self.broken(primitive):
            return "violation"
        return "clean" if self.done[primitive] and self.hit_by[primitive] else "inconclusive"

    @property
    def struck(self) -> int:
        """How many faults struck a holder."""
        return sum(self.hit.values())

    def shape(self) -> dict[str, Any]:
        """For JSON. Fields are only ever added."""
        plain = ["url", "prefix", "seed", "processes", "tasks", "ttl", "cycles", "writes"]
        return {name: getattr(self, name) for name in plain} | {
            "locks": self.resources.get("lock", 0),
            "semaphores": self.resources.get("semaphore", 0),
            "primitives": {each: self._shape_of(each) for each in self.resources},
            "outcome": self.outcome,
            "ended_early": self.ended_early,
            "seconds": round(self.seconds, 3),
            "faults": _by_kind(self.faults),
            "holders_hit": _by_kind(self.hit),
            "tokens": self.grants,
            "control_stale_writes": self.stale,
            "calm_seconds": round(self.calm, 3),
            "handoff": spread(self.handoffs),
            "handoff_under_faults": spread(self.takeovers),
            "outages": self.outages,
            "lapses": self.lapses,
            "violations": [_violation(each) for each in self.violations],
            "violations_per_cycle_below": _bound(self.violations, self.cycles),
            "violations_per_fault_below": _bound(self.violations, self.struck),
            "doubts": self.doubts,
            "wrote": self.wrote or None,
            "left": self.left or None,
            "history": self.history or None,
        }

    def _shape_of(self, primitive: str) -> dict[str, Any]:
        violations = self.broken(primitive)
        return {
            "outcome": self.outcome_of(primitive),
            "resources": self.resources[primitive],
            "cycles": self.done[primitive],
            "holders_hit": self.hit_by[primitive],
            "violations": len(violations),
        }

    def __str__(self) -> str:
        from dibs.testing.torture.words import told

        return "\n".join(told(self))


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """How many, the usual one, a bad one and the worst, in seconds."""
    ordered = sorted(values)

    def at(part: float) -> float | None:
        place = min(int(part * len(ordered)), len(ordered) - 1)
        return round(ordered[place], 6) if ordered else None

    return {"count": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)}


def _by_kind(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: counts.get(kind, 0) for kind in (KILL, *map(pause_name, PAUSES))}


def _bound(violations: Sequence[Violation], trials: int) -> float | None:
    """The rule of three: none in n trials bounds the rate by 3/n, with 95 % confidence."""
    return None if violations or not trials else min(1.0, 3 / trials)


def _violation(violation: Violation) -> dict[str, Any]:
    events = [str(event) for event in violation.events]
    return {
        "rule": violation.rule,
        "key": violation.key,
        "message": violation.message,
        "events": events,
    }
