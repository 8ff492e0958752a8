"""What follows from histories and counts, and how it is said."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dibs.testing import HistoryEvent, TorturePlan, Verdict, Violation
from dibs.testing.torture.judging import Judge

HIT = Counter({"kill": 20, "pause 3": 30})
EACH = Counter({"lock": 30, "semaphore": 20})
CLEAN = {
    "url": "x://",
    "cycles": 3000,
    "grants": 3001,
    "writes": 9,
    "stale": 7,
    "hit": HIT,
    "hit_by": EACH,
    "done": EACH,
    "resources": {"lock": 6, "semaphore": 1},
}


def clean(**changes: object) -> Verdict:
    return Verdict(**{**CLEAN, "faults": HIT + HIT, "scope": "host", **changes})  # type: ignore[arg-type]


def grant(
    at: float, token: int, *, invoked: float, lease: str, until: float = 99.0
) -> HistoryEvent:
    return HistoryEvent(at, "granted", "lock:a", lease, token, invoked, until)


def release(at: float, lease: str) -> HistoryEvent:
    return HistoryEvent(at, "releasing", "lock:a", lease)


# -- the verdict -----------------------------------------------------------------------------------


def test_none_in_n_bounds_the_rate_by_three_over_n() -> None:
    verdict = clean(calm=9.0)
    assert verdict.outcome == "clean"
    assert verdict.shape()["violations_per_cycle_below"] == pytest.approx(0.001)
    assert verdict.shape()["violations_per_fault_below"] == pytest.approx(0.06)
    assert "None in 3,000 cycles" in str(verdict)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cycles": 0}, "no process completed a single cycle"),
        ({"hit": Counter()}, "no fault struck a process that held a lease"),
        ({"stale": 0}, "the faults did not bite"),
        ({"hit_by": Counter(lock=1)}, "no fault struck a holder of semaphore"),
        ({"trouble": "2 processes ended by themselves"}, "2 processes ended by themselves"),
    ],
)
def test_a_trial_that_could_not_have_shown_anything_shows_nothing(
    changes: dict[str, object], why: str
) -> None:
    verdict = clean(**changes)
    assert verdict.outcome == "inconclusive"
    assert why in str(verdict).splitlines()[0]
    assert "3/n" not in str(verdict)


def test_a_violation_is_one_whatever_else_is_in_doubt() -> None:
    found = Violation("slot", "semaphore:s", "slots [0] have two holders", ())
    verdict = clean(violations=[found] * 5, stale=0, trouble="something")
    assert verdict.outcome == "violation"
    assert verdict.shape()["violations_per_cycle_below"] is None
    assert "broke 5 promises" in str(verdict)


def test_each_primitive_has_an_outcome_of_its_own() -> None:
    found = Violation("overlap", "rwlock:dibs-verify-1/rwlock-2", "a writer was not alone", ())
    some = {"lock": 1, "rwlock": 2, "leader": 1}
    verdict = clean(violations=[found], resources=some, hit_by=Counter(lock=3, rwlock=4))
    assert [verdict.outcome_of(each) for each in some] == ["clean", "violation", "inconclusive"]
    assert verdict.shape()["primitives"]["lock"] == {
        "outcome": "clean",
        "resources": 1,
        "cycles": 30,
        "holders_hit": 3,
        "violations": 0,
    }


def test_a_set_of_locks_is_told_from_locks() -> None:
    found = Violation("overlap", "lock:dibs-verify-1/allof-2-b", "2 units held of 1", ())
    verdict = clean(violations=[found], resources={"lock": 1, "allof": 1})
    assert verdict.broken("allof") == [found]
    assert verdict.broken("lock") == []


def test_rounds_add_up() -> None:
    total = clean(writes=10)
    total.add(clean(writes=5, trouble="x", calm=5.0))
    assert (total.cycles, total.stale, total.writes) == (6000, 14, 15)
    assert total.struck == 100
    assert (total.trouble, total.calm) == ("x", 5.0)


# -- judging ---------------------------------------------------------------------------------------


def write(folder: Path, *events: HistoryEvent) -> None:
    from dibs.testing import Recorder

    folder.mkdir()
    with Recorder(folder / "history-0.jsonl") as recorder:
        for event in events:
            recorder.record(event)


def test_tokens_must_rise_from_round_to_round(tmp_path: Path) -> None:
    judge = Judge(TorturePlan(seconds=60))
    for name in ("a", "b", "c"):
        at = {"a": 1.0, "b": 11.0, "c": 21.0}[name]
        token = {"a": 7, "b": 8, "c": 6}[name]
        write(
            tmp_path / name,
            grant(at, token, invoked=at - 0.1, lease=name),
            release(at + 0.1, name),
        )
    first, second, third = (judge.judge(tmp_path / name, []) for name in ("a", "b", "c"))
    assert [first.grants, second.grants, third.grants] == [1, 1, 1]
    assert first.violations == second.violations == []
    assert [violation.rule for violation in third.violations] == ["token"]


def test_only_the_unfenced_file_may_take_a_late_write(tmp_path: Path) -> None:
    def wrote(at: float, token: int, resource: str) -> HistoryEvent:
        return HistoryEvent(at, "wrote", "lock:a", token=token, resource=resource)

    late = [wrote(1.0, 5, "{}"), wrote(2.0, 4, "{}")]
    for kind in ("unfenced", "fenced"):
        name = f"{kind}-lock-1-0"
        write(tmp_path / kind, *(event._replace(resource=name) for event in late))
    judge = Judge(TorturePlan(seconds=60))
    control = judge.judge(tmp_path / "unfenced", [])
    assert (control.stale, control.violations) == (1, [])
    [violation] = judge.judge(tmp_path / "fenced", []).violations
    assert violation.rule == "stale write"


def test_who_waits_while_the_store_is_away_is_not_starved(tmp_path: Path) -> None:
    plan = TorturePlan(seconds=60, ttl=1.0)
    late = 100.0 + plan.bound + 1
    gave_up = HistoryEvent(late, "gave_up", "lock:a", invoked=100.0)
    write(tmp_path / "a", gave_up)
    assert [each.rule for each in Judge(plan).judge(tmp_path / "a", []).violations] == ["starved"]
    away = Judge(plan).judge(tmp_path / "a", [101.0, 105.0])
    assert (away.violations, away.lapses) == ([], 1)


# -- the plan --------------------------------------------------------------------------------------


def test_a_short_plan_has_no_calm_and_a_long_one_has_rounds() -> None:
    assert TorturePlan(seconds="5s").calm == 0
    day = TorturePlan(seconds="1h")
    assert day.calm > day.bound
    assert day.rounds == 80
    assert day.rounds * (day.storm + day.calm) == pytest.approx(3600)


def test_cycles_and_tasks_have_sensible_surroundings() -> None:
    plan = TorturePlan()
    assert (plan.seconds, plan.cycles, plan.tasks) == (60, None, 4)
    assert set(plan.resources.values()) == {4}
    large = TorturePlan(cycles=200_000, tasks=8)
    assert (large.seconds, large.resources["lock"]) == (3600, 8)
    assert len(large.names) == 48
    only = TorturePlan(tasks=8, primitives=["lock", "semaphore"], locks=40)
    assert only.resources == {"lock": 40, "semaphore": 24}
    assert only.names[38:42] == ["lock-39", "lock-40", "semaphore-1", "semaphore-2"]
    assert TorturePlan(cycles=200_000, seconds="20m").seconds == 1200


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"cycles": 0}, "cycles is 0"),
        ({"tasks": 65}, "1 to 64"),
        ({"tasks": 8, "locks": 23, "primitives": ["lock"]}, "48 tasks need 24 to 256"),
        ({"tasks": 8, "locks": 217}, "locks is 217: 48 tasks need 1 to 216"),
        ({"tasks": 64, "processes": 64}, "4096 tasks: give 512 in all at most"),
        ({"primitives": ["lock", "mutex"]}, "there is no 'mutex'; give some of lock, semaphore"),
        ({"primitives": []}, "none are given"),
        ({"primitives": ["leader"], "locks": 3}, "lock is not among the primitives"),
        ({"sides": ["trio"]}, "give threads or asyncio, or both"),
        ({"ttl": 0.01}, "ttl"),
        ({"processes": 65}, "2 to 64"),
        ({"seconds": "8d"}, "a second to a week"),
    ],
)
def test_what_can_not_be_planned(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorturePlan(**plan)
