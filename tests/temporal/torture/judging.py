"""From what everybody saw to broken promises, if there are any."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from leasehold.testing.checker import (
    Violation,
    check_exclusion,
    check_slots,
    check_tokens,
    check_writes,
)
from leasehold.testing.history import Event
from leasehold.testing.intervals import Holds
from leasehold.testing.liveness import check_liveness
from leasehold.testing.torture.resources import FENCED, UNFENCED
from tests.temporal.torture.holders import Order
from tests.temporal.torture.marks import AGAIN, lease_name, slot_key
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.reading import with_ends

type Run = tuple[str, str]
"""A workflow ID and a run ID."""
MOMENT = 0.01
"""Clocks are read one after the other."""


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
    holds = Holds(rest)
    found = list(check_writes(fenced))
    for key, of_key in holds.by_key.items():
        found += check_exclusion(key, of_key)
    ordered = 0
    grants_of = {
        key: [grant for grant in grants if grant.resource != AGAIN]
        for key, grants in holds.grants.items()
    }
    for key, grants in grants_of.items():
        found += check_slots(key, grants)
        found += _tokens(key, grants, plan)
        if plan.mode == "fair":
            early = _first_turns(grants, orders, arrivals)
            ordered += len(early)
            found += _order(key, grants, early, orders)
    found += check_liveness(rest, plan.bound)
    return Judgement(
        grants=sum(map(len, grants_of.values())),
        writes=len(fenced),
        stale=sum(1 for _ in check_writes(unfenced)),
        ordered=ordered,
        violations=found,
    )


def _tokens(key: str, grants: Sequence[Event], plan: Plan) -> Iterator[Violation]:
    """In slot mode nobody but the slot itself can say in which order it was granted."""
    if plan.mode == "fair":
        yield from check_tokens(key, grants)
    by_slot: defaultdict[int, list[Event]] = defaultdict(list)
    for grant in grants:
        for slot in grant.slots:
            by_slot[slot].append(grant)
    for slot, of_slot in sorted(by_slot.items()):
        yield from check_tokens(slot_key(key, slot), of_slot)


def _first_turns(
    grants: Iterable[Event], orders: Mapping[str, Order], arrivals: Mapping[Run, float]
) -> list[tuple[float, Event]]:
    """When the question was at the broker for certain, and the grant that came of it."""
    found: list[tuple[float, Event]] = []
    for grant in grants:
        name = lease_name(grant.lease)
        order, arrived = orders.get(name.workflow), arrivals.get((name.workflow, name.run))
        plain = order is not None and order.shape not in ("twins", "carries")
        if plain and name.turn == 1 and arrived is not None:
            found.append((arrived, grant))
    return found


def _order(
    key: str,
    grants: Sequence[Event],
    early: Sequence[tuple[float, Event]],
    orders: Mapping[str, Order],
) -> Iterator[Violation]:
    """Find who was served before somebody of no lesser priority whose place was there already."""
    for arrived, first in early:
        for later in grants:
            if later.token >= first.token or later.invoked <= arrived + MOMENT:
                continue
            if _priority(later, orders) <= _priority(first, orders):
                message = (
                    f"token {later.token} was asked for at {later.invoked:.6f}, and came before "
                    f"{first.token}, which waited since {arrived:.6f}"
                )
                yield Violation("token", key, f"out of turn: {message}", (first, later))


def _priority(grant: Event, orders: Mapping[str, Order]) -> int:
    order = orders.get(lease_name(grant.lease).workflow)
    return order.priority if order is not None else 0
