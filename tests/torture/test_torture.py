"""Small runs of the torture of real processes; see `__main__` for full ones."""

from pathlib import Path

import pytest

from dibs.testing import Torture, TorturePlan


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
    assert verdict.left == ""


@pytest.mark.slow
@pytest.mark.once
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
