"""From what everybody saw to broken promises, if there are any."""

from collections import defaultdict
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
from tests.temporal.torture.holders import Order
from tests.temporal.torture.marks import AGAIN, CLEARED, KILLED, lease_name, slot_key
from tests.temporal.torture.plan import Plan
from tests.torture.in_line import IN_LINE


def with_ends(events: Iterable[Event]) -> list[Event]:
    """Put an end to what the dead were doing, and to holds that an operator ended."""
    events = merge(events)
    ends = _Ends(events)
    return merge(each for event in events for each in ends.follow(event))


class _Ends:
    def __init__(self, events: Iterable[Event]) -> None:
        self._open: dict[str, Event] = {}
        """By lease: its grant, with the process that worked under it last."""
        self._known: dict[str, Event] = {}
        self._died = {event.process: event.at for event in events if event.resource == KILLED}
        self._cleared: list[Event] = []

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
                again = self._known[event.lease]._replace(
                    at=event.at,
                    until=event.until,
                    process=event.process,
                    invoked=-inf,
                    resource=AGAIN,
                )
                yield again
                yield from self._begin(again)
            case "releasing":
                self._open.pop(event.lease, None)
            case "disturbed" if event.resource == KILLED:
                for lease, grant in list(self._open.items()):
                    if grant.process == event.process:
                        yield self._end(lease, event.at)
            case "disturbed" if event.resource == CLEARED:
                self._cleared.append(event)
                for lease, grant in list(self._open.items()):
                    if _clears(event, grant):
                        yield self._end(lease, event.at)
            case _:
                pass

    def _begin(self, grant: Event) -> Iterator[Event]:
        """What the dead have yet to say, or one who has not heard of its end, begins no hold."""
        self._open[grant.lease] = self._known[grant.lease] = grant
        dead = self._died.get(grant.process, inf)
        if dead <= grant.at or any(_clears(mark, grant) for mark in self._cleared):
            yield self._end(grant.lease, grant.at)

    def _end(self, lease: str, at: float) -> Event:
        grant = self._open.pop(lease)
        return Event(at, "releasing", grant.key, lease, grant.token, process=grant.process)


def _clears(mark: Event, grant: Event) -> bool:
    return (
        mark.key == grant.key
        and grant.token <= mark.token
        and (not mark.slots or bool(set(mark.slots) & set(grant.slots)))
    )


type Run = tuple[str, str]
"""A workflow ID and a run ID."""
MOMENT = 0.01
"""Clocks are read one after the other."""


class Transition(NamedTuple):
    """A grant, and that the question for it was at the broker `arrived`, for certain."""

    arrived: float
    grant: Event
    until: float = inf
    """Somebody who is served later than that passes over nobody: the waiter may have fallen silent."""


def turns_of_holders(
    grants: Iterable[Event], orders: Mapping[str, Order], arrivals: Mapping[Run, float]
) -> Iterator[Transition]:
    """The first of each workflow's run."""
    for grant in grants:
        name = lease_name(grant.lease)
        order, arrived = orders.get(name.workflow), arrivals.get((name.workflow, name.run))
        clear = order is not None and order.shape not in ("twins", "carries")
        if clear and name.turn == 1 and arrived is not None:
            yield Transition(arrived, grant)


def turns_of_programs(
    grants: Iterable[Event], events: Iterable[Event], ttl: float
) -> Iterator[Transition]:
    """Of plain programs, who give signs of life: each is believed in for a while after it asked."""
    arrived: dict[tuple[int, str, float], float] = {}
    for event in events:
        if event.resource == IN_LINE:
            arrived.setdefault((event.process, event.key, event.invoked), event.at)
    for grant in grants:
        at = arrived.get((grant.process, grant.key, grant.invoked))
        if at is not None:
            yield Transition(at, grant, grant.invoked + (1 - DRIFT) * claim_timeout(ttl))


def out_of_turn(
    key: str, grants: Sequence[Event], turns: Iterable[Transition], orders: Mapping[str, Order]
) -> Iterator[Violation]:
    """Find who was served before somebody of no lesser priority whose place was there already."""
    for arrived, first, until in turns:
        for later in grants:
            if later.token >= first.token or later.invoked <= arrived + MOMENT or later.at > until:
                continue
            if _priority(later, orders) <= _priority(first, orders):
                message = (
                    f"token {later.token} was asked for at {later.invoked:.6f}, and came before "
                    f"{first.token}, which waited since {arrived:.6f}"
                )
                yield Violation("token", key, f"out of turn: {message}", (first, later))


def _priority(grant: Event, orders: Mapping[str, Order]) -> int:
    """Plain programs have none."""
    order = orders.get(lease_name(grant.lease).workflow)
    return order.priority if order is not None else 0


@dataclass
class Judgement:
    """What a history shows."""

    grants: int = 0
    writes: int = 0
    """By the fenced files accepted."""
    stale: int = 0
    """Writes under an old token that the unfenced files took."""
    ordered: int = 0
    """Grants whose turn could be told from the time at which they were asked for."""
    plain_ordered: int = 0
    """Likewise, of plain programs."""
    violations: list[Violation] = field(default_factory=list[Violation])


def judge(
    events: Iterable[Event],
    plan: Plan,
    orders: Mapping[str, Order],
    arrivals: Mapping[Run, float],
) -> Judgement:
    """`orders`: of each holder, by workflow ID. `arrivals`: when a run's first question had come to its
    broker, on the boot clock.
    """
    events = with_ends(events)
    unfenced = [event for event in events if event.resource.startswith(UNFENCED)]
    fenced = [event for event in events if event.resource.startswith(FENCED)]
    rest = [event for event in events if event.what != "wrote"]
    told = Judgement(writes=len(fenced), stale=sum(1 for _ in check_writes(unfenced)))
    told.violations += check_writes(fenced)
    told.violations += check_liveness(rest, plan.bound)
    holds = Holds(rest)
    for key, of_key in holds.by_key.items():
        told.violations += check_exclusion(key, of_key)
        grants = [grant for grant in holds.grants[key] if grant.resource != AGAIN]
        told.grants += len(grants)
        told.violations += check_slots(key, grants)
        told.violations += _tokens_of_slots(key, grants)
        by_broker = [grant for grant in grants if lease_name(grant.lease).by_broker]
        told.violations += check_tokens(key, by_broker)
        _judge_order(told, key, by_broker, (orders, arrivals, rest, plan.lease))
    return told


def _judge_order(
    told: Judgement,
    key: str,
    grants: Sequence[Event],
    known: tuple[Mapping[str, Order], Mapping[Run, float], Sequence[Event], float],
) -> None:
    """Among those who asked a broker."""
    orders, arrivals, events, lease = known
    turns = list(turns_of_holders(grants, orders, arrivals))
    plain = list(turns_of_programs(grants, events, lease))
    told.ordered += len(turns)
    told.plain_ordered += len(plain)
    told.violations += out_of_turn(key, grants, turns + plain, orders)


def _tokens_of_slots(key: str, grants: Sequence[Event]) -> Iterator[Violation]:
    """In slot mode nobody but the slot itself can say in which order it was granted."""
    by_slot: defaultdict[int, list[Event]] = defaultdict(list)
    for grant in grants:
        for slot in grant.slots:
            by_slot[slot].append(grant)
    for slot, of_slot in sorted(by_slot.items()):
        yield from check_tokens(slot_key(key, slot), of_slot)
