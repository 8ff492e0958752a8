"""The checker finds each kind of planted violation, and none in a clean history."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

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


def believed(at: float, lease: str) -> HistoryEvent:
    return HistoryEvent(at, "believed", KEY, lease)


def resized(at: float, lease: str, token: int, units: int, *, invoked: float) -> HistoryEvent:
    event = HistoryEvent(at, "resized", KEY, lease, token, invoked=invoked)
    return event._replace(units=units, capacity=MANY)


def of_many(at: float, lease: str, token: int, units: int = 1) -> HistoryEvent:
    """A reader's grant, or a writer's that has all units."""
    return granted(at, lease, token, until=9, capacity=MANY, units=units)


def started(at: float, lease: str, token: int, **more: Any) -> HistoryEvent:
    return granted(at, lease, token, until=at + 1, **{"min_hold": 3, **more})


def wrote(at: float, token: int, slots: tuple[int, ...] = ()) -> HistoryEvent:
    return HistoryEvent(at, "wrote", KEY, "x", token, resource="file", slots=slots)


A = granted(1, "a", 1, until=5)
TWO = granted(1, "a", 1, until=9, capacity=3, units=2)
SLOTS = granted(1, "a", 1, until=9, capacity=3, slots=(0, 2), units=2)
THREE = [granted(n, f"{n}", int(n), until=9, capacity=3, slots=(n,)) for n in (1.0, 2.0, 3.0)]
LEADER = [
    granted(1, "a", 1, until=5, key="leader:main"),
    granted(5, "b", 2, until=9, key="leader:main"),
]
SHRINKS = HistoryEvent(3, "shrinking", KEY, "w", 1, units=1, capacity=MANY)
BOTH = [granted(1, f"a{key}", 5, until=9, key=f"lock:{key}") for key in "bc"]

CLEAN = {
    "turns": [A, releasing(2, "a"), granted(2, "b", 2, until=6), granted(6, "c", 3, until=9)],
    "an answer after its deadline is no hold": [
        granted(6, "a", 1, until=5),
        granted(6, "b", 2, until=9),
    ],
    "an unanswered release ends the hold when it is sent": [
        granted(1, "a", 1, until=9),
        releasing(2, "a"),
        granted(2.5, "b", 2, until=9),
    ],
    "nothing counts after the release": [
        A,
        releasing(2, "a"),
        renewed(2.1, "a", 9),
        believed(2.2, "a"),
        granted(3, "b", 2, until=9),
    ],
    "the capacity is used": THREE,
    "units are weights": [TWO, granted(2, "b", 2, until=9, capacity=3)],
    "slots are apart": [SLOTS, granted(2, "b", 2, until=9, capacity=3, slots=(1,))],
    "holds under a greater capacity run on": [
        *(granted(n, f"{n}", int(n), until=9, capacity=4) for n in (1.0, 2.0, 3.0)),
        granted(9, "d", 9, until=12, capacity=1),
    ],
    "readers": [of_many(1, "r", 1), of_many(2, "s", 2)],
    "an upgrade counts from its answer": [
        of_many(1, "r", 1),
        of_many(2, "s", 2),
        releasing(4, "s"),
        resized(5, "r", 3, MANY, invoked=3),
    ],
    "a downgrade counts from its question": [
        of_many(1, "w", 1, MANY),
        of_many(4, "s", 2),
        resized(5, "w", 1, 1, invoked=3),
    ],
    "who wants less relies on no more, even if it dies before the answer": [
        of_many(1, "w", 1, MANY),
        SHRINKS,
        of_many(3.1, "r", 2),
    ],
    "a writer after one that shrank and left": [
        of_many(1, "w", 1, MANY),
        SHRINKS,
        releasing(3.5, "w"),
        of_many(4, "v", 2, MANY),
    ],
    "terms in turn": LEADER,
    "a term that was handed over": [LEADER[0], releasing(3, "a"), LEADER[1]._replace(at=3.1)],
    "a task that may start again, on a clock that ran fast": [
        started(1, "a", 1),
        releasing(1.5, "a"),
        started(3.48, "b", 2),
    ],
    "a task with a short min_hold after a long one": [
        started(1, "a", 1, min_hold=30),
        started(40, "b", 2, min_hold=1),
        started(42, "c", 3),
    ],
    "several at once": [*BOTH, granted(9, "b", 6, until=12, key="lock:c")],
    "calls at the same time may get tokens either way": [
        granted(1, "a", 7, until=2),
        granted(3, "b", 6, until=4, invoked=0.9),
    ],
    "keys have nothing to do with each other": [
        granted(1, "a", 7, until=9),
        granted(2, "b", 6, until=9, key="lock:b"),
    ],
    "tokens of writes rise and repeat": [wrote(1, 5), wrote(2, 5), wrote(3, 6)],
    "slots are written each for itself": [wrote(1, 6, (0,)), wrote(2, 5, (1,))],
}

BROKEN = {
    "overlap": (["overlap"], [A, granted(4.9, "b", 2, until=9)]),
    "overlap by a renewal alone": (
        ["overlap"],
        [A, renewed(4, "a", 7), granted(6, "b", 2, until=9)],
    ),
    "overlap by belief alone": (["overlap"], [A, granted(6, "b", 2, until=9), believed(7, "a")]),
    "one more than the capacity": (["overlap"], [*THREE, granted(4, "d", 4, until=9, capacity=3)]),
    "more units than there are": (
        ["overlap"],
        [TWO, granted(2, "b", 2, until=9, capacity=3, units=2)],
    ),
    "a slot twice": (["slot"], [SLOTS, granted(2, "b", 2, until=9, capacity=3, slots=(2,))]),
    "fewer slots than units": (["slot"], [SLOTS._replace(slots=(2,))]),
    "the same slot twice in a lease": (["slot"], [SLOTS._replace(slots=(2, 2))]),
    "more slots than units": (["slot"], [SLOTS._replace(slots=(0, 1, 2))]),
    "a writer beside a reader": (["overlap"], [of_many(1, "r", 1), of_many(2, "w", 2, MANY)]),
    "two writers": (["overlap"], [of_many(1, "v", 1, MANY), of_many(2, "w", 2, MANY)]),
    "an upgrade beside a reader": (
        ["overlap"],
        [of_many(1, "r", 1), of_many(2, "s", 2), resized(5, "r", 3, MANY, invoked=3)],
    ),
    "a reader before a downgrade": (
        ["overlap"],
        [of_many(1, "w", 1, MANY), of_many(2, "s", 2), resized(5, "w", 1, 1, invoked=3)],
    ),
    "an upgrade with the same token": (
        ["token"],
        [of_many(1, "r", 5), resized(5, "r", 5, MANY, invoked=3)],
    ),
    "an upgrade with a lower token": (
        ["token"],
        [of_many(1, "r", 5), resized(5, "r", 4, MANY, invoked=3)],
    ),
    "a reader before a writer shrinks": (
        ["overlap"],
        [of_many(1, "w", 1, MANY), SHRINKS, of_many(2.9, "r", 2)],
    ),
    "a writer beside one that shrank, and reads still": (
        ["overlap"],
        [of_many(1, "w", 1, MANY), SHRINKS, of_many(4, "v", 2, MANY)],
    ),
    "two leaders": (["overlap"], [*LEADER, renewed(4.5, "a", 5.1)._replace(key="leader:main")]),
    "a task starts too soon": (
        ["too soon"],
        [started(1, "a", 1), releasing(1.5, "a"), started(3.46, "b", 2)],
    ),
    "a task starts too soon, and again": (
        ["too soon", "too soon"],
        [
            *(started(1, "a", 1), releasing(1.5, "a"), started(2.5, "b", 2)),
            *(releasing(2.6, "b"), started(3.1, "c", 3)),
        ],
    ),
    "the longest min_hold counts": (
        ["too soon", "too soon"],
        [
            started(1, "a", 1, min_hold=30),
            started(5, "b", 2, min_hold=1),
            started(20, "c", 3, min_hold=0),
        ],
    ),
    "a task is started twice at once": (
        ["overlap", "too soon"],
        [started(1, "a", 1), started(1.5, "b", 2)],
    ),
    "one of several at once": (["overlap"], [*BOTH, granted(2, "b", 6, until=9, key="lock:c")]),
    "a repeated token": (["token"], [granted(1, "a", 7, until=2), granted(3, "b", 7, until=4)]),
    "a stale write": (["stale write"], [wrote(1, 5), wrote(2, 6), wrote(3, 5)]),
    "a stale write to one of two slots": (
        ["stale write"],
        [wrote(1, 6, (0, 1)), wrote(2, 5, (1,))],
    ),
}


@pytest.mark.parametrize("events", CLEAN.values(), ids=CLEAN)
def test_a_clean_history_has_no_violations(events: list[HistoryEvent]) -> None:
    assert rules(*events) == []


@pytest.mark.parametrize(("expected", "events"), BROKEN.values(), ids=BROKEN)
def test_a_violation_is_found(expected: list[str], events: list[HistoryEvent]) -> None:
    assert sorted(rules(*events)) == expected


def test_the_report_names_all_holders() -> None:
    first, second = granted(1, "a", 1, until=5), granted(2, "b", 2, until=9)
    (violation,) = check([first, second])
    assert violation.events == (first, second)
    assert "2 units held of 1" in str(violation)
    assert "lease='a'" in str(violation)
    assert "lease='b'" in str(violation)


def test_writers_and_leaders_are_named_as_such() -> None:
    (beside,) = check([of_many(1, "r", 1), of_many(2, "w", 2, MANY)])
    assert beside.message.startswith("a writer was not alone: ")
    (led,) = check(merge([*LEADER, renewed(4.5, "a", 5.1)._replace(key="leader:main")]))
    assert led.message.startswith("two led: ")


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
