"""What came of it, in plain words."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.temporal.torture.crowd import Ends
from tests.temporal.torture.faults import OF_PERMITS
from tests.temporal.torture.holders import BY_OTHERS, ENDED_BY_OTHERS
from tests.temporal.torture.judging import Judgement
from tests.temporal.torture.plan import Plan

SHOWN = 12
"""So many violations are told in full."""


@dataclass
class Verdict:
    """Everything that was tried and found. `str` tells it."""

    plan: Plan
    seconds: float = 0.0
    cycles: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    ends: Ends = field(default_factory=Ends)
    judgement: Judgement = field(default_factory=Judgement)
    stuck: list[str] = field(default_factory=list[str])
    """Holders that did not end once nobody was disturbed any more."""
    left: list[str] = field(default_factory=list[str])
    """What was open at the end."""
    wrong: Mapping[str, int] = field(default_factory=dict[str, int])
    """What workers complained of that they never should: by line, how often."""
    bad_ends: list[int] = field(default_factory=list[int])
    plain: Counter[str] = field(default_factory=Counter[str])
    """What befell plain programs."""
    bad_programs: list[int] = field(default_factory=list[int])
    """How plain programs ended that nobody had killed."""
    slow: int = 0
    """So many halves of a lease the machine was too slow for anybody to be served in time."""
    handovers: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often a broker continued as new, by its ID."""

    @property
    def clean(self) -> bool:
        """Nothing was found, and what was to be tried was tried."""
        return not list(self.broken()) and not list(self._untried())

    def broken(self) -> Iterator[str]:
        for violation in self.judgement.violations:
            yield str(violation)
        for each in self.stuck:
            yield f"not served, though nobody was disturbed any more: {each}"
        for each in self.left:
            yield f"left behind: {each}"
        ended, by_operators = (
            self.ends.turns[ENDED_BY_OTHERS]
            + sum(self.plain[f"lost ({why})"] for why in BY_OTHERS),
            sum(self.faults[kind] for kind in OF_PERMITS),
        )
        if ended > by_operators:
            yield f"{ended} permits were ended by others than their holders, {by_operators} by operators"
        if self.bad_programs:
            yield f"plain programs ended by themselves: {self.bad_programs}"
        for workflow, failure in self.ends.failures.items():
            yield f"holder {workflow} failed: {failure}"
        for line, times in self.wrong.items():
            yield f"workers complained {times} times: {line}"

    def _untried(self) -> Iterator[str]:
        if self.cycles < self.plan.cycles:
            yield f"only {self.cycles:,} of {self.plan.cycles:,} cycles were done"
        struck = self.faults.total()
        if struck < self.plan.faults:
            yield f"only {struck} of {self.plan.faults} faults struck"
        if self.plan.mode != "slot" and self.cycles >= 100 and not self.judgement.ordered:
            yield "the order of arrival of no holder's grant is known: it was not checked"
        if self.plan.faults >= 50 and not self.judgement.stale:
            yield "no stale write reached an unfenced file: the faults did not bite"

    def __str__(self) -> str:
        return "\n".join(self._told())

    def _told(self) -> Iterator[str]:
        broken, untried = list(self.broken()), list(self._untried())
        mode = f"{self.plan.mode} mode" + (f", bug {self.plan.bug}" if self.plan.bug else "")
        head = (
            f"VIOLATED {len(broken)} times"
            if broken
            else "INCONCLUSIVE"
            if untried
            else "NO VIOLATION"
        )
        yield f"{head}: {mode}, seed {self.plan.seed}, {self.seconds:.0f} s"
        yield f"{self.cycles:,} cycles, {self.judgement.grants:,} grants: {_listed(self.ends.turns)}"
        yield f"holders: {_listed(self.ends.statuses)}"
        yield f"{self.faults.total()} faults: {_listed(self.faults)}"
        yield (
            f"{self.judgement.writes:,} fenced writes; "
            f"{self.judgement.stale} stale ones took the files without a fence"
        )
        if self.plan.mode != "slot":
            yield (
                f"{self.judgement.ordered:,} grants in the order of arrival; longest history of a holder "
                f"{self.ends.longest} events; brokers continued as new {sum(self.handovers.values())} times"
            )
        if self.plan.programs:
            yield (
                f"plain programs: {_listed(self.plain)}; {self.judgement.plain_ordered:,} of their grants "
                "in the order of arrival"
            )
        if self.slow:
            yield f"slow {self.slow} times: nobody can be served in time where three steps take half a lease"
        if self.bad_ends:
            yield f"workers that ended by themselves: {self.bad_ends}"
        yield from (f"  ! {each}" for each in untried)
        yield from (f"  ! {each}" for each in broken[:SHOWN])
        if len(broken) > SHOWN:
            yield f"  ! and {len(broken) - SHOWN} more"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common()) or "none"
