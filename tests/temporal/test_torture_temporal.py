"""Workflows that contend while workers, servers and holders are struck; and the judge of such trials."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.history import HistoryEvent as Event
from tests.temporal.torture.holders import Order
from tests.temporal.torture.plan import Mode, Plan
from tests.temporal.torture.records import (
    LeaseName,
    killed,
)
from tests.temporal.torture.torture import torture
from tests.temporal.torture.verdict import Judge
from tests.torture.in_line import in_line

KEY = "semaphore:pool"

STRUCK: dict[Mode, tuple[str, ...]] = {
    "slot": ("worker killed", "holder reset", "holder terminated"),
    "fair": ("worker killed", "program killed", "holder reset", "server killed"),
}


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.serial
@pytest.mark.multiprocess
@pytest.mark.parametrize("mode", ["slot", pytest.param("fair", marks=pytest.mark.long)])
async def test_exclusion_and_tokens_hold_while_things_are_struck(
    mode: Mode, tmp_path: Path
) -> None:
    plan = Plan(
        mode=mode,
        cycles=5,
        faults=len(STRUCK[mode]),
        kinds=STRUCK[mode],
        workers=2,
        crowd=4,
        hands=1,
        lease=3.0,
        turns=(1, 2),
        long=0.0,
        slow=False,
        calm=0.5,
        to_the_end=False,
        seconds=60.0,
    )
    verdict = await torture(plan, tmp_path)
    assert not list(verdict.broken()), str(verdict)
    assert verdict.faults.total() == plan.faults
    assert verdict.cycles >= plan.cycles


def granted(
    at: float,
    holder: str,
    token: int,
    *,
    slots: tuple[int, ...] = (0,),
    process: int = 1,
    invoked: float | None = None,
    permit: str = "permit",
) -> Event:
    """Held for ten seconds from then, from a broker unless the `permit` is a workflow's run."""
    name = str(LeaseName(holder, "run", 1, permit, token))
    invoked = at - 0.1 if invoked is None else invoked
    units, capacity = len(slots), 2
    return Event(
        at, "granted", KEY, name, token, invoked, at + 10, units, capacity, slots, process=process
    )


def plain(at: float, token: int, *, invoked: float, process: int = 7) -> Event:
    """Granted to a plain program."""
    return granted(at, "first", token, invoked=invoked, process=process)._replace(
        lease=f"{process}-{token}", slots=(1,)
    )


def releasing(at: float, grant: Event) -> Event:
    return Event(at, "releasing", KEY, grant.lease, grant.token, process=grant.process)


def renewed(at: float, grant: Event, **more: Any) -> Event:
    return Event(at, "renewed", KEY, grant.lease, **more)


def rules(
    *events: Event, mode: Mode = "slot", arrivals: Sequence[tuple[str, float]] = ()
) -> set[str]:
    """The rules that were broken."""
    orders = {
        name: Order("pool", 2, "queue", priority=5 if name == "urgent" else 0)
        for name in ("first", "second", "urgent")
    }
    plan = Plan(mode=mode, lease=10.0)
    judge = Judge(plan, orders, {(name, "run"): at for name, at in arrivals})
    return {violation.rule for violation in judge.judge(events).violations}


FIRST, SECOND = granted(1, "first", 1, process=7), granted(2, "second", 2, process=8)


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([FIRST, SECOND], True),
        ([FIRST, releasing(1.5, FIRST), SECOND], False),
        ([FIRST, killed(1.5, 7), SECOND], False),  # the dead hold nothing
        ([FIRST, killed(1.5, 9), SECOND], True),
        # it goes on in another process
        ([FIRST, renewed(1.2, FIRST, until=12, process=8), killed(1.5, 7), SECOND], True),
        # what is relied on again is held again, but not by the dead
        (
            [FIRST, releasing(1.5, FIRST), SECOND, renewed(4, FIRST, until=9, process=2)],
            True,
        ),
        (
            [
                *(FIRST, releasing(1.5, FIRST), SECOND, releasing(3, SECOND)),
                renewed(4, FIRST, until=9, process=2),
            ],
            False,
        ),
        (
            [
                *(FIRST, releasing(1.5, FIRST), SECOND),
                *(renewed(4, FIRST, until=9, process=2), killed(3.9, 2)),
            ],
            False,
        ),
    ],
)
def test_two_in_one_slot_are_found(events: list[Event], broken: bool) -> None:
    assert rules(*events) == ({"slot"} if broken else set())


def test_tokens_that_fall_are_found_slot_by_slot() -> None:
    first = granted(1, "first", 5)
    over = releasing(1.5, first)
    assert rules(first, over, granted(2, "second", 4)) == {"token"}
    other = granted(2, "second", 4, slots=(1,))
    assert rules(first, over, other) == {"token"}, "a broker's all rise"
    assert not rules(first, over, granted(2, "second", 4, slots=(1,), permit="a-run-id"))


def test_grants_out_of_turn_are_found() -> None:
    first = granted(9, "first", 5, invoked=1)
    second = granted(8, "second", 4, slots=(1,), invoked=3)
    assert rules(first, second, mode="fair", arrivals=[("first", 2)]) == {"token"}
    assert not rules(first, second, mode="fair", arrivals=[("first", 3.5)])
    urgent = granted(8, "urgent", 4, slots=(1,), invoked=3)
    assert not rules(first, urgent, mode="fair", arrivals=[("first", 2)])


def test_a_program_that_is_passed_over_is_found() -> None:
    mine, place = plain(6, 9, invoked=1), in_line(1.5, KEY.encode(), 1, 7)
    early = granted(4, "second", 4, invoked=2)
    assert rules(place, early, mine, mode="fair") == {"token"}
    assert not rules(early, mine, mode="fair"), "it may not have stood in line"
    assert not rules(in_line(2.5, KEY.encode(), 1, 7), early, mine, mode="fair")
    late = granted(6.5, "second", 4, invoked=2)
    assert not rules(place, mine, late, mode="fair"), "it may have been silent too long"
    asked = granted(4, "second", 4, invoked=2, process=7)._replace(lease="7-4")
    assert rules(place, asked, mine, mode="fair") == {"token"}, "by another program"


def test_a_program_and_a_holder_exclude_each_other() -> None:
    mine = plain(1, 5, invoked=0.5)
    holder = granted(2, "first", 6, slots=(1,))
    assert rules(mine, holder, mode="fair") == {"slot"}
    for end in (releasing(1.5, mine), killed(1.5, 7)):
        assert not rules(mine, end, holder, mode="fair")
