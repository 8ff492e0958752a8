"""Workflows that contend while workers, servers and holders are struck; and the judge of such trials."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dibs.testing.history import HistoryEvent as Event
from dibs.testing.history import read
from tests.temporal.torture.diary import Claim, Diary
from tests.temporal.torture.holders import Order
from tests.temporal.torture.judging import Judgement, judge
from tests.temporal.torture.marks import (
    KILLED_HOLDING,
    KILLED_WAITING,
    LeaseName,
    befell,
    cleared,
    killed,
    lost,
)
from tests.temporal.torture.plan import Mode, Plan
from tests.temporal.torture.torture import torture
from tests.torture.in_line import in_line

KEY = "semaphore:pool"
ITS_OWN = "a-run-id"


STRUCK: dict[Mode, tuple[str, ...]] = {
    "slot": ("worker killed", "holder reset", "permit terminated"),
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


def test_a_lease_has_the_name_that_its_holder_gave_it(tmp_path: Path) -> None:
    lease = Claim("a-name", KEY.encode(), 1, (0,), until=0.0)
    with Diary(tmp_path / "history") as diary:
        diary.granted(lease, 0.0)
    assert [event.lease for event in read(tmp_path / "history")] == ["a-name"]


# -- the judge -----------------------------------------------------------------------------------------


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
    """Held for ten seconds from then, by grace of a broker unless the `permit` is a workflow's run."""
    return Event(
        at,
        "granted",
        KEY,
        str(LeaseName(holder, "run", 1, permit, token)),
        token,
        at - 0.1 if invoked is None else invoked,
        at + 10,
        len(slots),
        2,
        slots,
        process=process,
    )


def releasing(at: float, grant: Event) -> Event:
    return Event(at, "releasing", KEY, grant.lease, grant.token, process=grant.process)


def judged(
    *events: Event, mode: Mode = "slot", arrivals: Sequence[tuple[str, float]] = ()
) -> Judgement:
    orders = {
        name: Order("pool", 2, "queue", priority=5 if name == "urgent" else 0)
        for name in ("first", "second", "urgent")
    }
    plan = Plan(mode=mode, lease=10.0)
    return judge(events, plan, orders, {(name, "run"): at for name, at in arrivals})


def rules(judgement: Judgement) -> set[str]:
    return {violation.rule for violation in judgement.violations}


def test_two_in_one_slot_are_found() -> None:
    assert rules(judged(granted(1, "first", 1), granted(2, "second", 2))) == {"slot"}


def test_a_slot_that_was_given_up_is_free() -> None:
    first = granted(1, "first", 1)
    assert not rules(judged(first, releasing(1.5, first), granted(2, "second", 2)))


def test_the_dead_hold_nothing() -> None:
    first = granted(1, "first", 1, process=7)
    assert not rules(judged(first, killed(1.5, 7), granted(2, "second", 2, process=8)))
    assert rules(judged(first, killed(1.5, 9), granted(2, "second", 2, process=8)))


def test_who_works_on_in_another_process_lives() -> None:
    first = granted(1, "first", 1, process=7)
    renewed = Event(1.2, "renewed", KEY, first.lease, until=12, process=8)
    assert rules(judged(first, renewed, killed(1.5, 7), granted(2, "second", 2)))


def test_what_is_relied_on_again_is_held_again() -> None:
    first = granted(1, "first", 1)
    pause, again = releasing(1.5, first), Event(4, "renewed", KEY, first.lease, until=9, process=2)
    second = granted(2, "second", 2)
    assert not rules(judged(first, pause, second, releasing(3, second), again))
    assert rules(judged(first, pause, second, again)) == {"slot"}
    assert not rules(judged(first, pause, second, again, killed(3.9, 2))), "but by the dead"


def test_what_an_operator_frees_is_free() -> None:
    first, second = granted(1, "first", 10), granted(2, "second", 20)
    assert not rules(judged(first, cleared(1.5, KEY, (0,), 15), second))
    assert rules(judged(first, cleared(1.5, KEY, (1,), 15), second)), "another slot"
    assert rules(judged(first, cleared(1.5, KEY, (0,), 5), second)), "an earlier holder"
    late = granted(1.7, "first", 10)
    assert not rules(judged(cleared(1.5, KEY, (0,), 15), late, second)), "one that hears of it late"


def test_tokens_that_fall_are_found_slot_by_slot() -> None:
    first = granted(1, "first", 5)
    over = releasing(1.5, first)
    assert rules(judged(first, over, granted(2, "second", 4))) == {"token"}
    other = granted(2, "second", 4, slots=(1,))
    assert rules(judged(first, over, other)) == {"token"}, "a broker's all rise"
    assert not rules(judged(first, over, granted(2, "second", 4, slots=(1,), permit=ITS_OWN)))


def test_who_is_served_out_of_turn_is_found() -> None:
    first = granted(9, "first", 5, invoked=1)
    second = granted(8, "second", 4, slots=(1,), invoked=3)
    told = judged(first, second, mode="fair", arrivals=[("first", 2)])
    assert ["out of turn" in violation.message for violation in told.violations] == [True]
    assert not rules(judged(first, second, mode="fair", arrivals=[("first", 3.5)]))
    urgent = granted(8, "urgent", 4, slots=(1,), invoked=3)
    assert not rules(judged(first, urgent, mode="fair", arrivals=[("first", 2)]))


# -- plain programs --------------------------------------------------------------------------------------


def plain(at: float, token: int, *, invoked: float, process: int = 7) -> Event:
    """Granted to a plain program."""
    return granted(at, "first", token, invoked=invoked, process=process)._replace(
        lease=f"{process}-{token}", slots=(1,)
    )


def test_a_program_that_is_passed_over_is_found() -> None:
    mine, place = plain(6, 9, invoked=1), in_line(1.5, KEY.encode(), 1, 7)
    early = granted(4, "second", 4, invoked=2)
    assert rules(judged(place, early, mine, mode="fair")) == {"token"}
    assert not rules(judged(early, mine, mode="fair")), "it may not have stood in line"
    assert not rules(judged(in_line(2.5, KEY.encode(), 1, 7), early, mine, mode="fair"))
    late = granted(6.5, "second", 4, invoked=2)
    assert not rules(judged(place, mine, late, mode="fair")), "it may have been silent too long"
    asked = granted(4, "second", 4, invoked=2, process=7)._replace(lease="7-4")
    assert rules(judged(place, asked, mine, mode="fair")) == {"token"}, "by another program"


def test_a_program_and_a_holder_exclude_each_other() -> None:
    mine = plain(1, 5, invoked=0.5)
    assert rules(judged(mine, granted(2, "first", 6, slots=(1,)), mode="fair")) == {"slot"}
    over = releasing(1.5, mine)
    assert not rules(judged(mine, over, granted(2, "first", 6, slots=(1,)), mode="fair"))
    dead = killed(1.5, 7)
    assert not rules(judged(mine, dead, granted(2, "first", 6, slots=(1,)), mode="fair"))


def test_what_befell_programs_is_told() -> None:
    asked = Event(0.5, "asked", KEY, process=7)
    mine = plain(1, 5, invoked=0.5)
    events = [
        asked, mine, releasing(2, mine),
        asked, plain(3, 6, invoked=0.5), lost(4, KEY.encode(), "revoked", 7),
        asked, Event(5, "gave_up", KEY, process=7),
        asked, in_line(6, KEY.encode(), 0.5, 7),
        killed(7, 7), killed(8, 9),
    ]  # fmt: skip
    assert befell(events) == {
        "released": 1, "lost (revoked)": 1, "gave up": 1, KILLED_HOLDING: 1, KILLED_WAITING: 1,
    }  # fmt: skip
