"""From what was recorded to broken promises, and what came of a trial in plain words."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from dibs.core.timing import DRIFT, claim_timeout
from dibs.testing.checker import (
    Holds,
    Violation,
    check_exclusion,
    check_slots,
    check_tokens,
    check_writes,
)
from dibs.testing.history import HistoryEvent as Event
from dibs.testing.history import merge
from dibs.testing.liveness import check_liveness
from dibs.testing.torture.resources import FENCED, UNFENCED
from tests.temporal.torture.crowd import Ends
from tests.temporal.torture.holders import BY_OTHERS, ENDED_BY_OTHERS, Order
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.records import AGAIN, KILLED, lease_name
from tests.torture.in_line import IN_LINE

type Run = tuple[str, str]
"""A workflow ID and a run ID."""
MOMENT = 0.01
"""Seconds between the readings of two clocks."""
SHOWN = 12
"""Violations that are shown in full."""


class _Ends:
    """Adds the ends of holds whose holder died."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._open: dict[str, Event] = {}
        """By lease: its grant, with the process that worked under it last."""
        self._known: dict[str, Event] = {}
        self._died = {event.process: event.at for event in events if event.resource == KILLED}

    def follow(self, event: Event) -> Iterator[Event]:
        """The event, and the ends of holds that it means."""
        yield event
        match event.what:
            case "granted":
                yield from self._begin(event)
            case "renewed" if event.lease in self._open:
                grant = self._open[event.lease]
                self._open[event.lease] = grant._replace(process=event.process)
            case "renewed" if event.lease in self._known:
                known = self._known[event.lease]
                again = known._replace(at=event.at, until=event.until, process=event.process)
                again = again._replace(invoked=-inf, resource=AGAIN)
                yield again
                yield from self._begin(again)
            case "releasing":
                self._open.pop(event.lease, None)
            case "disturbed" if event.resource == KILLED:
                for lease, grant in list(self._open.items()):
                    if grant.process == event.process:
                        yield self._end(lease, event.at)
            case _:
                pass

    def _begin(self, grant: Event) -> Iterator[Event]:
        """A grant that was recorded after its process died begins no hold."""
        self._open[grant.lease] = self._known[grant.lease] = grant
        if self._died.get(grant.process, inf) <= grant.at:
            yield self._end(grant.lease, grant.at)

    def _end(self, lease: str, at: float) -> Event:
        grant = self._open.pop(lease)
        return Event(at, "releasing", grant.key, lease, grant.token, process=grant.process)


class Turn(NamedTuple):
    """A grant whose request was at the broker when it had `arrived`, for certain."""

    arrived: float
    grant: Event
    until: float = inf
    """Whoever is served later than that passes over nobody: the waiter may have fallen silent."""


@dataclass
class Judgement:
    """What a history shows."""

    grants: int = 0
    writes: int = 0
    """That the fenced files accepted."""
    stale: int = 0
    """Writes under an old token that the unfenced files took."""
    ordered: int = 0
    """Grants of workflows and programs whose place in the queue is known."""
    violations: list[Violation] = field(default_factory=list[Violation])


@dataclass
class Judge:
    """`orders` are by workflow ID. `arrivals`: when a run's first request was at its broker (boot clock)."""

    plan: Plan
    orders: Mapping[str, Order]
    arrivals: Mapping[Run, float]

    def judge(self, recorded: Iterable[Event]) -> Judgement:
        events = merge(recorded)
        ends = _Ends(events)
        events = merge(each for event in events for each in ends.follow(event))
        unfenced = [event for event in events if event.resource.startswith(UNFENCED)]
        fenced = [event for event in events if event.resource.startswith(FENCED)]
        rest = [event for event in events if event.what != "wrote"]
        found = Judgement(writes=len(fenced), stale=sum(1 for _ in check_writes(unfenced)))
        found.violations += check_writes(fenced)
        found.violations += check_liveness(rest, self.plan.bound)
        holds = Holds(rest)
        for key, of_key in holds.by_key.items():
            found.violations += check_exclusion(key, of_key)
            grants = [grant for grant in holds.grants[key] if grant.resource != AGAIN]
            found.grants += len(grants)
            found.violations += check_slots(key, grants)
            found.violations += _tokens_of_slots(key, grants)
            by_broker = [grant for grant in grants if lease_name(grant.lease).by_broker]
            found.violations += check_tokens(key, by_broker)
            turns = [
                *self._turns_of_holders(by_broker),
                *self._turns_of_programs(by_broker, rest),
            ]
            found.ordered += len(turns)
            found.violations += self._out_of_turn(key, by_broker, turns)
        return found

    def _turns_of_holders(self, grants: Iterable[Event]) -> Iterator[Turn]:
        """The first of each workflow's run."""
        for grant in grants:
            name = lease_name(grant.lease)
            order = self.orders.get(name.workflow)
            arrived = self.arrivals.get((name.workflow, name.run))
            clear = order is not None and order.shape not in ("twins", "carries")
            if clear and name.turn == 1 and arrived is not None:
                yield Turn(arrived, grant)

    def _turns_of_programs(
        self, grants: Iterable[Event], events: Iterable[Event]
    ) -> Iterator[Turn]:
        """Plain programs send heartbeats: each keeps its place for a while after it asked."""
        arrived: dict[tuple[int, str, float], float] = {}
        for event in events:
            if event.resource == IN_LINE:
                arrived.setdefault((event.process, event.key, event.invoked), event.at)
        silent = (1 - DRIFT) * claim_timeout(self.plan.lease)
        for grant in grants:
            at = arrived.get((grant.process, grant.key, grant.invoked))
            if at is not None:
                yield Turn(at, grant, grant.invoked + silent)

    def _out_of_turn(
        self, key: str, grants: Sequence[Event], turns: Iterable[Turn]
    ) -> Iterator[Violation]:
        """Who was served before somebody of no lesser priority whose place was there already."""
        for arrived, first, until in turns:
            for later in grants:
                if (
                    later.token < first.token
                    and later.invoked > arrived + MOMENT
                    and later.at <= until
                    and self._priority(later) <= self._priority(first)
                ):
                    message = (
                        f"token {later.token} was asked for at {later.invoked:.6f}, and came before "
                        f"{first.token}, which waited since {arrived:.6f}"
                    )
                    yield Violation("token", key, f"out of turn: {message}", (first, later))

    def _priority(self, grant: Event) -> int:
        """Plain programs have none."""
        order = self.orders.get(lease_name(grant.lease).workflow)
        return order.priority if order is not None else 0


def _tokens_of_slots(key: str, grants: Sequence[Event]) -> Iterator[Violation]:
    """In slot mode tokens rise by slot."""
    by_slot: defaultdict[int, list[Event]] = defaultdict(list)
    for grant in grants:
        for slot in grant.slots:
            by_slot[slot].append(grant)
    for slot, of_slot in sorted(by_slot.items()):
        yield from check_tokens(f"{key}/{slot}", of_slot)


@dataclass
class Verdict:
    """Everything that was tried and found. `str` describes it."""

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
    """What workers should never log: by line, how often."""
    plain_lost: Counter[str] = field(default_factory=Counter[str])
    """Why plain programs have lost their leases."""
    bad_programs: list[int] = field(default_factory=list[int])
    """Exit codes of plain programs that nobody had killed."""

    @property
    def clean(self) -> bool:
        """Nothing was found, and what was to be tried was tried."""
        return not list(self.broken()) and not list(self._untried())

    def broken(self) -> Iterator[str]:
        yield from map(str, self.judgement.violations)
        for each in self.stuck:
            yield f"not served, though nobody was disturbed any more: {each}"
        for each in self.left:
            yield f"left behind: {each}"
        ended = self.ends.turns[ENDED_BY_OTHERS]
        ended += sum(self.plain_lost[why] for why in BY_OTHERS)
        if ended:
            yield f"{ended} permits were ended by others than their holders"
        if self.bad_programs:
            yield f"plain programs ended by themselves: {self.bad_programs}"
        for workflow, failure in self.ends.failures.items():
            yield f"holder {workflow} failed: {failure}"
        for line, times in self.wrong.items():
            yield f"workers complained {times} times: {line}"

    def _untried(self) -> Iterator[str]:
        struck = self.faults.total()
        if self.cycles < self.plan.cycles:
            yield f"only {self.cycles:,} of {self.plan.cycles:,} cycles were done"
        if struck < self.plan.faults:
            yield f"only {struck} of {self.plan.faults} faults struck"
        if self.plan.mode != "slot" and self.cycles >= 100 and not self.judgement.ordered:
            yield "the order of arrival of no grant is known: it was not checked"
        if self.plan.faults >= 50 and not self.judgement.stale:
            yield "no stale write reached an unfenced file: the faults did not bite"

    def __str__(self) -> str:
        broken, untried = list(self.broken()), list(self._untried())
        judged, plan = self.judgement, self.plan
        head = "INCONCLUSIVE" if untried else "NO VIOLATION"
        if broken:
            head = f"VIOLATED {len(broken)} times"
        bug = f", bug {plan.bug}" if plan.bug else ""
        lines = [
            f"{head}: {plan.mode} mode{bug}, seed {plan.seed}, {self.seconds:.0f} s",
            f"{self.cycles:,} cycles, {judged.grants:,} grants, {self.faults.total()} faults",
            f"holders: {_listed(self.ends.statuses)}; their turns: {_listed(self.ends.turns)}",
            f"faults: {_listed(self.faults)}; losses of programs: {_listed(self.plain_lost)}",
            f"{judged.writes:,} fenced writes; {judged.stale} stale ones without a fence",
            f"the order of arrival of {judged.ordered:,} grants is known",
            *(f"  ! {each}" for each in [*untried, *broken[:SHOWN]]),
        ]
        if len(broken) > SHOWN:
            lines.append(f"  ! and {len(broken) - SHOWN} more")
        return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common()) or "none"
