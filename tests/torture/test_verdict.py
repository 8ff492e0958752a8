"""What follows from histories and counts, and how it is said."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dibs.testing import HistoryEvent, Recorder, TorturePlan, Verdict, Violation
from dibs.testing.torture.judging import Judge

HIT = Counter({"kill": 20, "pause 3": 30})
EACH = Counter({"lock": 30, "semaphore": 20})
CLEAN = {
    "url": "x://",
    "cycles": 3000,
    "grants": 3001,
    "writes": 9,
    "stale": 7,
    "scope": "host",
    "hit": HIT,
    "hit_by": EACH,
    "faults": HIT + HIT,
    "done": EACH,
    "resources": {"lock": 6, "semaphore": 1},
}


def clean(**changes: object) -> Verdict:
    return Verdict(**{**CLEAN, **changes})  # type: ignore[arg-type]


def violation(rule: Any, key: str) -> Violation:
    return Violation(rule, key, "what happened", ())


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


def test_a_violation_is_one_whatever_else_is_in_doubt_and_rounds_add_up() -> None:
    verdict = clean(violations=[violation("slot", "semaphore:s")] * 5, stale=0, trouble="something")
    assert verdict.outcome == "violation"
    assert verdict.shape()["violations_per_cycle_below"] is None
    assert "broke 5 promises" in str(verdict)
    verdict.add(clean(calm=5.0))
    assert (verdict.cycles, verdict.stale, verdict.writes, verdict.struck) == (6000, 7, 18, 100)
    assert (verdict.trouble, verdict.calm, verdict.outcome) == ("something", 5.0, "violation")


def test_each_primitive_has_an_outcome_of_its_own() -> None:
    """A set of locks is told from locks."""
    found = [
        violation("overlap", "rwlock:dibs-verify-1/rwlock-2"),
        violation("overlap", "lock:dibs-verify-1/allof-2-b"),
    ]
    some = {"lock": 1, "rwlock": 2, "leader": 1, "allof": 1}
    verdict = clean(violations=found, resources=some, hit_by=Counter(lock=3, rwlock=4))
    outcomes = [verdict.outcome_of(each) for each in some]
    assert outcomes == ["clean", "violation", "inconclusive", "violation"]
    assert verdict.broken("allof") == found[1:]
    of_lock = {"outcome": "clean", "resources": 1, "cycles": 30, "holders_hit": 3, "violations": 0}
    assert verdict.shape()["primitives"]["lock"] == of_lock


# -- judging ---------------------------------------------------------------------------------------


def judged(judge: Judge, folder: Path, *events: HistoryEvent, away: Any = ()) -> Verdict:
    folder.mkdir()
    with Recorder(folder / "history-0.jsonl") as recorder:
        for event in events:
            recorder.record(event)
    return judge.judge(folder, list(away))


def rules(verdict: Verdict) -> list[str]:
    return [each.rule for each in verdict.violations]


def test_tokens_must_rise_from_round_to_round(tmp_path: Path) -> None:
    judge = Judge(TorturePlan(seconds=60))

    def round_of(at: float, token: int, lease: str) -> Verdict:
        grant = HistoryEvent(at, "granted", "lock:a", lease, token, at - 0.1, 99.0)
        leaves = HistoryEvent(at + 0.1, "releasing", "lock:a", lease)
        return judged(judge, tmp_path / lease, grant, leaves)

    rounds = round_of(1.0, 7, "a"), round_of(11.0, 8, "b"), round_of(21.0, 6, "c")
    assert [each.grants for each in rounds] == [1, 1, 1]
    assert [rules(each) for each in rounds] == [[], [], ["token"]]


def test_only_the_unfenced_file_may_take_a_late_write(tmp_path: Path) -> None:
    found = {}
    for kind in ("unfenced", "fenced"):
        writes = (
            HistoryEvent(at, "wrote", "lock:a", token=token, resource=f"{kind}-lock-1-0")
            for at, token in ((1.0, 5), (2.0, 4))
        )
        found[kind] = judged(Judge(TorturePlan(seconds=60)), tmp_path / kind, *writes)
    assert (found["unfenced"].stale, rules(found["unfenced"])) == (1, [])
    assert rules(found["fenced"]) == ["stale write"]


def test_who_waits_while_the_store_is_away_is_not_starved(tmp_path: Path) -> None:
    plan = TorturePlan(seconds=60, ttl=1.0)
    gave_up = HistoryEvent(101.0 + plan.bound, "gave_up", "lock:a", invoked=100.0)
    assert rules(judged(Judge(plan), tmp_path / "a", gave_up)) == ["starved"]
    away = judged(Judge(plan), tmp_path / "b", gave_up, away=[101.0, 105.0])
    assert (rules(away), away.lapses) == ([], 1)


# -- the plan --------------------------------------------------------------------------------------


def test_a_plan_has_sensible_sizes() -> None:
    assert TorturePlan(seconds="5s").calm == 0
    day = TorturePlan(seconds="1h")
    assert day.calm > day.bound
    assert day.rounds * (day.storm + day.calm) == pytest.approx(3600)
    plan, large = TorturePlan(), TorturePlan(cycles=200_000, tasks=8)
    assert (plan.seconds, plan.cycles, plan.tasks, {*plan.resources.values()}) == (60, None, 4, {4})
    assert (large.seconds, large.resources["lock"], len(large.names)) == (3600, 8, 48)
    only = TorturePlan(tasks=8, primitives=["lock", "semaphore"], locks=40)
    assert only.resources == {"lock": 40, "semaphore": 24}
    assert only.names[38:42] == ["lock-39", "lock-40", "semaphore-1", "semaphore-2"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"cycles": 0}, "cycles is 0"),
        ({"tasks": 65}, "1 to 64"),
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
def test_what_cannot_be_planned(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorturePlan(**plan)
