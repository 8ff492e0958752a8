"""Was anybody served out of turn? Told of those who are known to have stood in line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from dibs.core.timing import DRIFT, claim_window
from dibs.testing.checker import Violation
from dibs.testing.history import Event
from tests.temporal.torture.holders import Order
from tests.temporal.torture.marks import lease_name
from tests.torture.in_line import IN_LINE

type Run = tuple[str, str]
"""A workflow ID and a run ID."""
MOMENT = 0.01
"""Clocks are read one after the other."""


class Turn(NamedTuple):
    """A grant, and that the question for it was at the broker `arrived`, for certain."""

    arrived: float
    grant: Event
    until: float = inf
    """Somebody who is served later than that passes over nobody: the waiter may have fallen silent."""


def turns_of_holders(
    grants: Iterable[Event], orders: Mapping[str, Order], arrivals: Mapping[Run, float]
) -> Iterator[Turn]:
    """The first of each workflow's run."""
    for grant in grants:
        name = lease_name(grant.lease)
        order, arrived = orders.get(name.workflow), arrivals.get((name.workflow, name.run))
        clear = order is not None and order.shape not in ("twins", "carries")
        if clear and name.turn == 1 and arrived is not None:
            yield Turn(arrived, grant)


def turns_of_programs(
    grants: Iterable[Event], events: Iterable[Event], ttl: float
) -> Iterator[Turn]:
    """Of plain programs, who give signs of life: each is believed in for a while after it asked."""
    arrived: dict[tuple[int, str, float], float] = {}
    for event in events:
        if event.resource == IN_LINE:
            arrived.setdefault((event.process, event.key, event.invoked), event.at)
    for grant in grants:
        at = arrived.get((grant.process, grant.key, grant.invoked))
        if at is not None:
            yield Turn(at, grant, grant.invoked + (1 - DRIFT) * claim_window(ttl))


def out_of_turn(
    key: str, grants: Sequence[Event], turns: Iterable[Turn], orders: Mapping[str, Order]
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
