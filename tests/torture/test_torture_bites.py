"""The torture of real processes finds what is planted in a store, and names it."""

import shutil
from pathlib import Path

import pytest

from dibs.testing import Torture, TorturePlan, Verdict
from tests.torture.planted import announce

pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.serial,
    pytest.mark.multiprocess,
    pytest.mark.timeout(150),
]


@pytest.fixture(autouse=True)
def _do_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is thrown away afterwards: no need to see that it drops the places of the dead."""
    monkeypatch.setattr("dibs.testing.torture.namespace.LINGER", 0.0)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that may have a bug."""
    announce(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return f"planted://{tmp_path / 'leases.db'}?bug="


def verdict_on(url: str, seconds: float) -> Verdict:
    verdict = Torture(url, TorturePlan(seconds=seconds, ttl=0.6, processes=6, seed=1)).run()
    if verdict.history:
        assert (Path(verdict.history) / "history-supervisor.jsonl").exists()
        shutil.rmtree(verdict.history)
    return verdict


@pytest.mark.parametrize(
    ("bug", "rule", "words", "seconds"),
    [
        ("two-at-once", "overlap", "more held it at once than may", 6),
        ("forgets-early", "overlap", "more held it at once than may", 10),
        ("tokens-fall", "token", "fencing tokens did not rise", 6),
        pytest.param(
            "the-dead-hold-on",
            "starved",
            "somebody waited, and nobody got it in time",
            24,
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_planted_bug_is_named(
    planted: str, bug: str, rule: str, words: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.testing.torture.crew.PATIENCE", 2.0)  # some wait for ever
    if bug == "the-dead-hold-on":  # so there must be some
        monkeypatch.setattr("dibs.testing.torture.rounds.KILLS", 0.8)
    verdict = verdict_on(planted + bug, seconds)
    assert rule in {violation.rule for violation in verdict.violations}
    assert verdict.outcome == "violation"
    told = str(verdict)
    assert told.startswith("VIOLATED: planted://")
    assert words in told
    assert "NO VIOLATION" not in told


def test_without_a_bug_that_store_is_clean(planted: str) -> None:
    verdict = verdict_on(planted + "none", 10)
    assert verdict.violations == []
    assert verdict.cycles > 100


def test_a_store_that_breaks_its_users_is_no_clean_store(planted: str) -> None:
    """Its processes die by themselves, so nothing follows from what they didn't see."""
    verdict = verdict_on(planted + "crashes", 30)
    assert verdict.outcome == "inconclusive"
    assert "ZeroDivisionError: planted" in str(verdict)
    assert verdict.seconds < 28  # of 30


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.serial
@pytest.mark.multiprocess
@pytest.mark.timeout(150)
def test_processes_under_kills_and_pauses(tmp_path: Path) -> None:
    plan = TorturePlan(seconds=40, ttl=0.6)
    verdict = Torture(f"sqlite:///{tmp_path / 'leases.db'}", plan).run()
    assert verdict.violations == []
    assert verdict.trouble == ""
    assert verdict.stale > 0, f"the faults did not bite: {verdict.hit}"
    assert verdict.hit["kill"] > 3
    assert verdict.struck - verdict.hit["kill"] > 3
    assert verdict.cycles > 300
    assert verdict.calm > 5
    assert verdict.outcome == "clean"
    assert not verdict.left or "places of killed processes" in verdict.left


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.multiprocess
@pytest.mark.timeout(150)
def test_many_tasks_in_each_process_until_so_many_cycles_are_done(tmp_path: Path) -> None:
    plan = TorturePlan(cycles=2000, tasks=6, processes=4, ttl=0.6, seconds=120)
    verdict = Torture(f"sqlite:///{tmp_path / 'leases.db'}", plan).run()
    assert verdict.violations == []
    assert verdict.trouble == ""
    assert verdict.cycles >= 2000
    assert verdict.struck > 0
    assert verdict.calm > 5, "everybody was served in the end"
    assert verdict.seconds < 100, "it ended with its cycles, not with its time"
