"""The torture of real processes: stores that are right are clean, and what is planted in one is named."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dibs.testing import Torture, TorturePlan, TortureProgress, Verdict
from dibs.testing.torture.plan import PRIMITIVES, SIDES, SideName
from tests.torture.planted import announce
from tests.torture.processes import torture

pytestmark = [
    *(pytest.mark.slow, pytest.mark.once, pytest.mark.serial, pytest.mark.multiprocess),
    pytest.mark.timeout(150),
]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
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
    """It ends as soon as there was enough of everything."""

    def is_enough(progress: TortureProgress, _: object) -> bool:
        faults = min(progress.kills, progress.pauses)
        return bool(progress.cycles > 400 and faults > 1 and progress.struck > 6)

    plan = TorturePlan(seconds=60, ttl=0.6, seed=1, processes=4, sides=sides)
    verdict, _ = torture(url, plan, {}, (), is_enough)
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


# ---- a store with a bug -----------------------------------------------------------------------------

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


@pytest.mark.long
@pytest.mark.parametrize("bug", SHOWS)
def test_a_planted_bug_is_named(planted: str, bug: str) -> None:
    """A lock beside another primitive is found to be well. `tests/cli/test_verify.py` plants one, too."""
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


@pytest.mark.long
def test_a_store_that_breaks_its_users_is_no_clean_store(planted: str) -> None:
    """Its processes die by themselves, so nothing follows from what they didn't see."""
    verdict = verdict_on(planted + "crashes", 30)
    assert verdict.outcome == "inconclusive"
    assert "ZeroDivisionError: planted" in str(verdict)
    assert verdict.seconds < 28  # of 30
