"""The torture of real processes: stores that are right are clean, and what is planted in one is named."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dibs.testing import Torture, TorturePlan, Verdict
from dibs.testing.torture.plan import PRIMITIVES, SIDES, SideName
from tests.torture.planted import announce

pytestmark = [
    *(pytest.mark.slow, pytest.mark.once, pytest.mark.serial, pytest.mark.multiprocess),
    pytest.mark.timeout(150),
]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that may have a bug."""
    announce(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("dibs.testing.torture.crew.PATIENCE", 2.0)  # some wait for ever
    return f"planted://{tmp_path / 'leases.db'}?bug="


def verdict_on(url: str, seconds: float, **size: Any) -> Verdict:
    verdict = Torture(url, TorturePlan(seconds=seconds, ttl=0.6, seed=1, **size)).run()
    if verdict.history and "planted" in url:
        assert (Path(verdict.history) / "history-supervisor.jsonl").exists()
        shutil.rmtree(verdict.history)
    return verdict


# ---- stores that are right --------------------------------------------------------------------------


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis_url", marks=pytest.mark.long),
        pytest.param("postgres_url", marks=pytest.mark.long),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store that processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'leases.db'}"
    of_server: str = request.getfixturevalue(request.param)
    return of_server


@pytest.mark.parametrize(
    "sides",
    [SIDES, *(pytest.param((side,), marks=pytest.mark.long) for side in SIDES)],
    ids=" and ".join,
)
def test_every_primitive_keeps_its_word_under_kills_and_pauses(
    url: str, sides: Sequence[SideName]
) -> None:
    size = {"processes": 4, "tasks": 4, "sides": sides}
    verdict = verdict_on(url, 9, **size)
    if verdict.faults["kill"] < 2 and not verdict.violations:
        verdict = verdict_on(url, 40, **size)  # the machine is so busy that they had hardly started
    assert verdict.violations == [], str(verdict)
    assert verdict.trouble == "", str(verdict)
    assert verdict.faults["kill"] > 1
    assert verdict.faults.total() - verdict.faults["kill"] > 1
    for primitive in PRIMITIVES:
        assert verdict.done[primitive] > 5, f"{primitive}: {verdict}"
    assert len(verdict.hit_by) > len(PRIMITIVES) / 2, str(verdict)


@pytest.mark.long
def test_all_are_served_in_the_calm_after_the_storm(tmp_path: Path) -> None:
    verdict = verdict_on(f"sqlite:///{tmp_path / 'leases.db'}", 40)
    assert verdict.violations == []
    assert verdict.trouble == ""
    assert verdict.calm > 4
    assert verdict.cycles > 100
    assert not verdict.left or "places of killed processes" in verdict.left
    assert verdict.stale > 0, f"the faults did not bite: {verdict.hit}"
    assert verdict.hit["kill"] > 3
    assert verdict.struck - verdict.hit["kill"] > 3
    assert verdict.outcome == "clean"


@pytest.mark.long
def test_many_tasks_in_each_process_until_so_many_cycles_are_done(tmp_path: Path) -> None:
    verdict = verdict_on(
        f"sqlite:///{tmp_path / 'leases.db'}", 120, cycles=2000, tasks=6, processes=4
    )
    assert verdict.violations == []
    assert verdict.trouble == ""
    assert verdict.cycles >= 2000
    assert verdict.struck > 0
    assert verdict.calm > 5, "everybody was served in the end"
    assert verdict.seconds < 100, "it ended with its cycles, not with its time"


# ---- a store with a bug -----------------------------------------------------------------------------

SMALL = ("slots-repeat",)
SHOWS = {
    "two-at-once": ("lock", "overlap", "more held it at once than may"),
    "slots-repeat": ("semaphore", "slot", "two held the same slot at once"),
    "forgets-early": ("lock", "overlap", "more held it at once than may"),
    "tokens-fall": ("lock", "token", "fencing tokens did not rise"),
    "too-soon": ("tasklock", "too soon", "started again before its min_hold was over"),
    "a-downgrade-gives-all-up": ("rwlock", "overlap", "a writer was not alone"),
    "two-lead": ("leader", "overlap", "two led"),
    "not-all": ("allof", "overlap", "2 units held of 1"),
}
"""The primitive that breaks, the rule, and what the verdict says."""


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=() if bug in SMALL else pytest.mark.long) for bug in SHOWS]
)
def test_a_planted_bug_is_named(planted: str, bug: str) -> None:
    """A lock beside another primitive is found to be well."""
    primitive, rule, words = SHOWS[bug]
    size = {"processes": 4, "tasks": 3, "primitives": sorted({"lock", primitive})}
    verdict = verdict_on(planted + bug, 3, **size)
    if verdict.outcome_of(primitive) != "violation":
        verdict = verdict_on(planted + bug, 20, **size)  # the machine is busy, or it is rare
    assert verdict.outcome_of(primitive) == verdict.outcome == "violation", str(verdict)
    assert rule in {violation.rule for violation in verdict.violations}
    told = str(verdict)
    assert told.startswith("VIOLATED: planted://")
    assert words in told
    assert "NO VIOLATION" not in told
    if primitive != "lock":
        assert verdict.broken("lock") == []
        assert verdict.done["lock"] > 0


@pytest.mark.long
def test_it_is_named_that_the_dead_hold_on(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.testing.torture.rounds.KILLS", 0.8)  # so there must be some
    verdict = verdict_on(planted + "the-dead-hold-on", 24)
    assert "starved" in {violation.rule for violation in verdict.violations}
    assert "a waiter did not get it in time" in str(verdict)


def test_a_store_that_breaks_its_users_is_no_clean_store(planted: str) -> None:
    """Its processes die by themselves, so nothing follows from what they didn't see."""
    verdict = verdict_on(planted + "crashes", 30)
    assert verdict.outcome == "inconclusive"
    assert "ZeroDivisionError: planted" in str(verdict)
    assert verdict.seconds < 28  # of 30
