"""From what everybody saw to broken promises, if there are any."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dibs.testing.checker import (
    Violation,
    check_exclusion,
    check_slots,
    check_tokens,
    check_writes,
)
from dibs.testing.history import Event
from dibs.testing.intervals import Holds
from dibs.testing.liveness import check_liveness
from dibs.testing.torture.resources import FENCED, UNFENCED
from tests.temporal.torture.holders import Order
from tests.temporal.torture.marks import AGAIN, lease_name, slot_key
from tests.temporal.torture.ordering import Run, out_of_turn, turns_of_holders, turns_of_programs
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.reading import with_ends


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
