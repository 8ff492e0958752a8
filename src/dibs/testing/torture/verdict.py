"""The result of a torture, as data, as JSON and in plain words."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dibs.testing.checker import Violation
from dibs.testing.torture.plan import CAPACITY, PRIMITIVES, primitive_of

type Outcome = Literal["clean", "violation", "inconclusive"]

KILL = "kill"
PAUSES = (0.5, 1.0, 3.0)
"""How long a worker is stopped, in ttls."""


def pause_name(ttls: float) -> str:
    """Name of a pause of that length in counters of faults."""
    return f"pause {ttls:g}"


_SUMMED = (
    *("cycles", "grants", "writes", "stale", "calm", "outages", "lapses"),
    *("faults", "hit", "hit_by", "done", "violations"),
)


@dataclass
class Verdict:
    """Everything that was tried and found. `str` describes it in plain words."""

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
    """The cycles of each primitive in the histories."""
    grants: int = 0
    """As many tokens were seen."""
    writes: int = 0
    """By the fenced files accepted."""
    stale: int = 0
    """Writes under an old token that the unfenced files took."""
    violations: list[Violation] = field(default_factory=list[Violation])
    calm: float = 0.0
    """Seconds without faults, in which everybody had to be served."""
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
        """Add what another round has tried and found."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("trouble", "wrote", "history"):
            setattr(self, name, getattr(self, name) or getattr(other, name))

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
        """As `outcome`, for one primitive. Late writes are judged for all together."""
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
            "outages": self.outages,
            "lapses": self.lapses,
            "violations": [
                {
                    "rule": each.rule,
                    "key": each.key,
                    "message": each.message,
                    "events": [str(event) for event in each.events],
                }
                for each in self.violations
            ],
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
        parts = [_headline(self)], _tried(self), _found(self), _meaning(self), _not_tried(self)
        return "\n\n".join("\n".join(part) for part in parts)


def _by_kind(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: counts.get(kind, 0) for kind in (KILL, *map(pause_name, PAUSES))}


def _bound(violations: Sequence[Violation], trials: int) -> float | None:
    """The rule of three: none in n trials bounds the rate by 3/n, with 95 % confidence."""
    return None if violations or not trials else min(1.0, 3 / trials)


# -- in plain words ----------------------------------------------------------------------------------

FEW = 3
"""Violations that are described in full."""

_MEANING = {
    "overlap": "more held it at once than may",
    "slot": "two held the same slot at once, or one had not a slot for each unit",
    "token": "fencing tokens did not rise, so they can't tell an old holder from a new one",
    "too soon": "a task was started again before its min_hold was over",
    "stale write": "a resource that compares tokens took a write from an old holder",
    "starved": "it was free, and a waiter did not get it in time",
}

_NAME = {
    "lock": "lock",
    "semaphore": "semaphore",
    "rwlock": "readers-writer lock",
    "tasklock": "task lock",
    "leader": "leader election",
    "allof": "set of locks",
}
_PLURAL = {each: f"{name}s" for each, name in _NAME.items()} | {"allof": "sets of locks"}


def _headline(verdict: Verdict) -> str:
    match verdict.outcome:
        case "violation":
            return f"VIOLATED: {verdict.url} broke {_count(verdict.violations, 'promise')}."
        case "inconclusive":
            return f"NOTHING FOUND, AND NOTHING SHOWN for {verdict.url}: " + "; ".join(
                verdict.doubts
            )
        case "clean":
            return f"NO VIOLATION FOUND in {verdict.url}."


def _tried(verdict: Verdict) -> Iterator[str]:
    early = ", ended early" if verdict.ended_early else ""
    yield f"Tried, in {verdict.seconds:.0f} s{early} (seed {verdict.seed}):"
    each = f", {verdict.tasks} in each" if verdict.tasks > 1 else ""
    yield (
        f"  {verdict.processes} processes on this machine ({verdict.threads} with threads, "
        f"{verdict.processes - verdict.threads} with asyncio{each}), ttl {verdict.ttl:g} s,"
    )
    resources = ", ".join(_resources(what, many) for what, many in verdict.resources.items())
    yield f"  on {resources},"
    yield f"  named {verdict.prefix}*"
    yield f"  {verdict.cycles:,} cycles: acquire, check, write, release"
    yield f"  {verdict.faults.total():,} faults, of which {verdict.struck:,} struck a holder:"
    yield f"    kill -9: {_faults(verdict, KILL)}"
    for ttls in PAUSES:
        yield f"    SIGSTOP for {ttls:g} x ttl: {_faults(verdict, pause_name(ttls))}"
    if verdict.lapses or verdict.outages:
        yield (
            f"  besides, the store was away or slow at {verdict.lapses:,} looks (two a second), "
            f"and {verdict.outages:,} calls were given up"
        )


def _resources(primitive: str, many: int) -> str:
    of = f" of {CAPACITY}" if primitive == "semaphore" else ""
    return f"{many} {_NAME[primitive] if many == 1 else _PLURAL[primitive]}{of}"


def _faults(verdict: Verdict, kind: str) -> str:
    return f"{verdict.faults[kind]:,}, of which {verdict.hit[kind]:,} struck a holder"


def _found(verdict: Verdict) -> Iterator[str]:
    yield "Found:"
    broken = {violation.rule for violation in verdict.violations}
    yield from _by_primitive(verdict)
    if not broken & {"overlap", "slot", "too soon"}:
        yield "  exclusion: nobody held what another held, no task was started too soon"
    if "token" not in broken:
        yield f"  fencing tokens: {verdict.grants:,}, each above those given before it was asked for"
    if "stale write" not in broken:
        yield f"  files that compare tokens: {verdict.writes:,} writes taken, none from an old holder"
    yield _control(verdict)
    if verdict.calm and "starved" not in broken:
        yield f"  waiting: after the last fault everybody was served, in {verdict.calm:.0f} s of calm"
    if verdict.wrote:
        yield "  processes that ended by themselves wrote:"
        yield from (f"    {line}" for line in verdict.wrote.splitlines())
    if verdict.left:
        yield f"  left behind: {verdict.left}"
    shown = _shown(verdict.violations)
    for violation in shown:
        yield f"  BROKEN, {_MEANING[violation.rule]}: {violation}"
    if len(verdict.violations) > len(shown):
        yield f"  and {len(verdict.violations) - len(shown)} more"
    if verdict.history:
        yield f"  what every process recorded is in {verdict.history}"


def _shown(violations: Sequence[Violation]) -> list[Violation]:
    """A few of them, in their order, with the first of each rule: many of one must not hide another."""
    firsts = {each.rule: at for at, each in reversed([*enumerate(violations)])}
    places = dict.fromkeys([*firsts.values(), *range(len(violations))])
    return [violations[at] for at in sorted([*places][: max(FEW, len(firsts))])]


def _by_primitive(verdict: Verdict) -> Iterator[str]:
    for each in verdict.resources:
        done, struck = verdict.done[each], verdict.hit_by[each]
        found = {
            "violation": f"VIOLATED, {_count(verdict.broken(each), 'promise')} broken",
            "inconclusive": "nothing shown",
            "clean": "no violation",
        }[verdict.outcome_of(each)]
        yield f"  {_NAME[each]}: {done:,} cycles, {struck:,} faults struck a holder: {found}"


def _control(verdict: Verdict) -> str:
    """Whether the faults bit."""
    if verdict.stale:
        return (
            f"  files that compare nothing (the control): {verdict.stale:,} late writes of paused "
            "holders got in, so the faults bit"
        )
    return "  files that compare nothing (the control): no late write got in, so no fault bit"


def _meaning(verdict: Verdict) -> Iterator[str]:
    yield "What it means:"
    if verdict.violations:
        yield "  Each of these really happened: what nobody saw was taken in the store's favour."
        yield "  Don't rely on this deployment for exclusion until it is explained. A store that lost"
        yield "  data explains it: a restart of one that keeps nothing, a fail-over to one that lags."
        return
    if verdict.outcome == "inconclusive":
        yield "  Nothing: a fault might not have been seen. Run it longer (--seconds)."
        return
    yield (
        f"  None in {verdict.cycles:,} cycles bounds the rate of violations to about 3/n: "
        f"{_rate(verdict.cycles)} of cycles;"
    )
    yield (
        f"  none in {verdict.struck:,} faults that struck a holder: {_rate(verdict.struck)} "
        "of such faults (95 % confidence, if trials are alike)."
    )
    yield "  A longer run (--seconds) makes it smaller; no run makes it zero."
    yield "  The control's late writes are nobody's bug: no lock prevents them. Have your resource"
    yield "  compare the token (lease.token), as the other files did."


def _rate(trials: int) -> str:
    if trials > 30_000:
        return f"{3 / trials:.2g}"
    percent = min(100.0, 300 / trials)
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _not_tried(verdict: Verdict) -> Iterator[str]:
    yield "Not tried:"
    if not verdict.calm:
        yield "  whether everybody is served once faults end (the run was too short for that),"
    if verdict.scope == "cluster":
        yield "  restarts, fail-over or loss of data of the store; slow, cut or half-open connections;"
        yield "  clients on several machines, and clocks that run apart or are set;"
    else:
        yield "  crashes of this machine, loss of power, a full disk, a suspended machine;"
    others = [_PLURAL[each] for each in PRIMITIVES if each not in verdict.resources]
    yield f"  {', '.join(['long leases', *others])} and priorities."


def _count(things: Sequence[object], what: str) -> str:
    return f"{len(things)} {what}" + "s" * (len(things) != 1)
