"""Small runs of the torture, and proof that it would find what it is for; see `__main__` for full ones."""

from pathlib import Path

import pytest

from leasehold.testing import Torture, TorturePlan
from tests.torture.bugs import BUGS
from tests.torture.simulate import Result, Simulation, quiet, simulate


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_ten_thousand_cycles_in_bad_weather(seed: int) -> None:
    result = simulate(seed, 10_000)
    assert result.violations == []
    assert result.cycles >= 10_000
    assert result.stale > 10, "the faults did not bite"
    assert min(result.faults[kind] for kind in ("kill", "stop", "away")) > 10


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    total = Result()
    for seed in range(1, 7):
        total.add(simulate(seed, 600 if bug == "the dead hold on" else 5000, bug))
        if BUGS[bug].shows <= {violation.rule for violation in total.violations}:
            return
    pytest.fail(f"{bug}: not found in {total.cycles} cycles, but {total.violations[:3]}")


def test_the_same_seed_is_the_same_history() -> None:
    def history(seed: int) -> list[str]:
        simulation = Simulation(seed)
        with quiet():
            simulation.run(300)
        return [str(event) for event in simulation.history]

    assert history(1) == history(1) != history(2)


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
