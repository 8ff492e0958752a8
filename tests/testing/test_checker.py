"""The checker finds each kind of planted violation, and none in a clean history."""

import random
from collections.abc import Iterator
from typing import Any

from dibs.model import MANY
from dibs.testing import HistoryEvent, check, merge

KEY = "lock:a"


def granted(at: float, lease: str, token: int, until: float, **more: Any) -> HistoryEvent:
    event = HistoryEvent(at, "granted", KEY, lease, token, invoked=at - 0.5, until=until)
    return event._replace(**more)


def renewed(at: float, lease: str, until: float) -> HistoryEvent:
    return HistoryEvent(at, "renewed", KEY, lease, until=until)


def releasing(at: float, lease: str) -> HistoryEvent:
    return HistoryEvent(at, "releasing", KEY, lease)


def rules(*events: HistoryEvent) -> list[str]:
    return [violation.rule for violation in check(merge(events))]


def test_turns_are_clean() -> None:
    assert not rules(
        granted(1, "a", 1, until=5),
        releasing(2, "a"),
        granted(2, "b", 2, until=6),
        granted(6, "c", 3, until=9),
    )


def test_overlap() -> None:
    assert rules(granted(1, "a", 1, until=5), granted(4.9, "b", 2, until=9)) == ["overlap"]


def test_overlap_by_a_renewal_alone() -> None:
    early = granted(1, "a", 1, until=5)
    later = granted(6, "b", 2, until=9)
    assert not rules(early, later)
    assert rules(early, renewed(4, "a", 7), later) == ["overlap"]


def test_overlap_by_belief_alone() -> None:
    early = granted(1, "a", 1, until=5)
    later = granted(6, "b", 2, until=9)
    told = HistoryEvent(7, "believed", KEY, "a")
    assert rules(early, later, told) == ["overlap"]


def test_an_answer_after_its_deadline_is_no_hold() -> None:
    assert not rules(granted(6, "a", 1, until=5), granted(6, "b", 2, until=9))


def test_an_unanswered_release_ends_the_hold_when_it_is_sent() -> None:
    assert not rules(granted(1, "a", 1, until=9), releasing(2, "a"), granted(2.5, "b", 2, until=9))


def test_nothing_counts_after_the_release() -> None:
    assert not rules(
        granted(1, "a", 1, until=5),
        releasing(2, "a"),
        renewed(2.1, "a", 9),
        HistoryEvent(2.2, "believed", KEY, "a"),
        granted(3, "b", 2, until=9),
    )


def test_the_report_names_all_holders() -> None:
    first, second = granted(1, "a", 1, until=5), granted(2, "b", 2, until=9)
    (violation,) = check([first, second])
    assert violation.events == (first, second)
    assert "2 units held of 1" in str(violation)
    assert "lease='a'" in str(violation)
    assert "lease='b'" in str(violation)


def test_capacity() -> None:
    three = [
        granted(n, f"{n}", int(n), until=9, capacity=3, slots=(n,), units=1)
        for n in (1.0, 2.0, 3.0)
    ]
    assert not rules(*three)
    assert rules(*three, granted(4, "d", 4, until=9, capacity=3)) == ["overlap"]


def test_units_are_weights() -> None:
    two = granted(1, "a", 1, until=9, capacity=3, units=2)
    assert not rules(two, granted(2, "b", 2, until=9, capacity=3, units=1))
    assert rules(two, granted(2, "b", 2, until=9, capacity=3, units=2)) == ["overlap"]


def test_a_slot_twice() -> None:
    first = granted(1, "a", 1, until=9, capacity=3, slots=(0, 2), units=2)
    assert not rules(first, granted(2, "b", 2, until=9, capacity=3, slots=(1,)))
    assert rules(first, granted(2, "b", 2, until=9, capacity=3, slots=(2,))) == ["slot"]


def test_holds_under_a_greater_capacity_run_on() -> None:
    four = [granted(n, f"{n}", int(n), until=9, capacity=4) for n in (1.0, 2.0, 3.0)]
    assert not rules(*four, granted(9, "d", 9, until=12, capacity=1))


def test_a_writer_beside_a_reader() -> None:
    many = MANY
    reader = granted(1, "r", 1, until=9, capacity=many)
    assert not rules(reader, granted(2, "s", 2, until=9, capacity=many))
    assert rules(reader, granted(2, "w", 2, until=9, capacity=many, units=many)) == ["overlap"]


def test_an_upgrade_counts_from_its_answer() -> None:
    many = MANY
    reader = granted(1, "r", 1, until=9, capacity=many)
    other = granted(2, "s", 2, until=9, capacity=many)
    grown = HistoryEvent(5, "resized", KEY, "r", 3, invoked=3, units=many, capacity=many)
    assert not rules(reader, other, releasing(4, "s"), grown)
    assert rules(reader, other, grown) == ["overlap"]


def test_a_downgrade_counts_from_its_question() -> None:
    many = MANY
    writer = granted(1, "w", 1, until=9, capacity=many, units=many)
    shrunk = HistoryEvent(5, "resized", KEY, "w", 1, invoked=3, units=1, capacity=many)
    assert not rules(writer, granted(4, "s", 2, until=9, capacity=many), shrunk)
    assert rules(writer, granted(2, "s", 2, until=9, capacity=many), shrunk) == ["overlap"]


def test_a_writer_is_told_as_such() -> None:
    many = MANY
    reader = granted(1, "r", 1, until=9, capacity=many)
    writer = granted(2, "w", 2, until=9, capacity=many, units=many)
    (violation,) = check([reader, writer])
    assert violation.message.startswith("a writer was not alone: ")
    later = [releasing(1.9, "r"), writer]
    assert not check([reader, *later])
    two = [writer._replace(at=1.0, lease="v", token=1), writer]
    assert [violation.rule for violation in check(two)] == ["overlap"]


def test_an_upgrade_has_a_token_of_its_own() -> None:
    many = MANY
    reader = granted(1, "r", 5, until=9, capacity=many)
    grown = HistoryEvent(5, "resized", KEY, "r", 6, invoked=3, units=many, capacity=many)
    assert not rules(reader, grown)
    assert rules(reader, grown._replace(token=5)) == ["token"]
    assert rules(reader, grown._replace(token=4)) == ["token"]


def test_terms_do_not_overlap() -> None:
    """Who could not renew leads until its own deadline, however long the store would keep it."""
    first = granted(1, "a", 1, until=5, key="leader:main")
    second = granted(5, "b", 2, until=9, key="leader:main")
    assert not rules(first, second)
    assert not rules(first, second._replace(at=3.1), releasing(3, "a"))
    (violation,) = check(merge([first, second, renewed(4.5, "a", 5.1)]))
    assert violation.message.startswith("two led: ")


def test_a_slot_for_each_unit() -> None:
    two = granted(1, "a", 1, until=9, capacity=3, slots=(0, 2), units=2)
    assert not rules(two)
    assert rules(two._replace(slots=(2,))) == ["slot"]
    assert rules(two._replace(slots=(2, 2))) == ["slot"]
    assert rules(two._replace(slots=(0, 1, 2))) == ["slot"]


def started(at: float, lease: str, token: int, **more: Any) -> HistoryEvent:
    return granted(at, lease, token, until=at + 1, min_hold=3, **more)


def test_a_task_starts_once_in_its_min_hold() -> None:
    """It was asked for half a second before, and may have begun then, on a clock that ran fast."""
    first, over = started(1, "a", 1), releasing(1.5, "a")
    assert not rules(first, over, started(3.48, "b", 2))
    assert rules(first, over, started(3.46, "b", 2)) == ["too soon"]
    assert rules(first, over, started(2.5, "b", 2), releasing(2.6, "b"), started(3.1, "c", 3)) == [
        "too soon",
        "too soon",
    ]


def test_the_longest_min_hold_counts() -> None:
    long = granted(1, "a", 1, until=2, min_hold=30)
    short = granted(40, "b", 2, until=41, min_hold=1)
    assert not rules(long, short, granted(42, "c", 3, until=43, min_hold=1))
    assert rules(long, short._replace(at=5, until=6, invoked=4.5)) == ["too soon"]
    early = short._replace(at=5, until=6, invoked=4.5)
    assert rules(long, early, granted(20, "c", 3, until=21)) == ["too soon", "too soon"]


def test_a_task_that_is_started_twice_at_once() -> None:
    assert set(rules(started(1, "a", 1), started(1.5, "b", 2))) == {"overlap", "too soon"}


def test_all_of_several_are_checked_each_for_itself() -> None:
    both = [granted(1, f"a{key}", 5, until=9, key=f"lock:{key}") for key in "bc"]
    one = granted(2, "b", 6, until=9, key="lock:c")
    assert not rules(*both, one._replace(at=9.0, until=12))
    assert rules(*both, one) == ["overlap"]


def test_who_wants_less_relies_on_no_more_from_then_on() -> None:
    """Also if it dies before the answer."""
    many = MANY
    writer = granted(1, "w", 1, until=9, capacity=many, units=many)
    shrinks = HistoryEvent(3, "shrinking", KEY, "w", 1, units=1, capacity=many)
    reader = granted(3.1, "r", 2, until=9, capacity=many)
    assert not rules(writer, shrinks, reader)
    assert rules(writer, shrinks, reader._replace(at=2.9)) == ["overlap"]
    other = granted(4, "v", 2, until=9, capacity=many, units=many)
    assert rules(writer, shrinks, other) == ["overlap"], "it reads still"
    assert not rules(writer, shrinks, releasing(3.5, "w"), other)


def test_a_repeated_token() -> None:
    assert rules(granted(1, "a", 7, until=2), granted(3, "b", 7, until=4)) == ["token"]


def test_calls_at_the_same_time_may_get_tokens_either_way() -> None:
    late = granted(3, "b", 6, until=4, invoked=0.9)
    assert not rules(granted(1, "a", 7, until=2), late)


def test_keys_have_nothing_to_do_with_each_other() -> None:
    assert not rules(granted(1, "a", 7, until=9), granted(2, "b", 6, until=9, key="lock:b"))


def wrote(at: float, token: int, slots: tuple[int, ...] = ()) -> HistoryEvent:
    return HistoryEvent(at, "wrote", KEY, "x", token, resource="file", slots=slots)


def test_a_stale_write() -> None:
    assert not rules(wrote(1, 5), wrote(2, 5), wrote(3, 6))
    assert rules(wrote(1, 5), wrote(2, 6), wrote(3, 5)) == ["stale write"]


def test_slots_are_compared_each_for_itself() -> None:
    assert not rules(wrote(1, 6, (0,)), wrote(2, 5, (1,)))
    assert rules(wrote(1, 6, (0, 1)), wrote(2, 5, (1,))) == ["stale write"]


def long_history(cycles: int, keys: int) -> Iterator[HistoryEvent]:
    """Clean cycles of acquire, renew, release on many keys."""
    draw = random.Random(1).random
    now = [float(key) for key in range(keys)]
    for cycle in range(cycles):
        key = cycle % keys
        at = now[key] + draw()
        lease, name = f"{cycle}", f"lock:{key}"
        yield HistoryEvent(at, "granted", name, lease, cycle + 1, invoked=at - draw(), until=at + 2)
        yield HistoryEvent(at + 1, "renewed", name, lease, until=at + 3)
        now[key] = at + 1 + draw()
        yield HistoryEvent(now[key], "releasing", name, lease)


def test_one_needle_in_a_long_history() -> None:
    events = merge(long_history(20_000, 50))
    assert not check(events)
    victim = next(e for e in events[10_000:] if e.what == "granted")
    thief = victim._replace(at=victim.at + 0.5, lease="thief", token=10**9, invoked=victim.at)
    kinds = {violation.rule for violation in check(merge([*events, thief]))}
    assert "overlap" in kinds
    assert kinds <= {"overlap", "token"}  # the later tokens fall below the thief's
