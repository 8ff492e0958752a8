"""Small runs of the simulation, and proof that it would find what it is for; see `__main__` for full ones."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.torture.actions import ACTIONS
from tests.torture.bugs import BUGS, CYCLES
from tests.torture.simulate import simulate

pytestmark = pytest.mark.once

SMALL = ("anybody releases",)
"""Bugs that `make test` plants, too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "cycles"),
    [
        (1, 1_500),
        pytest.param(1, 10_000, marks=pytest.mark.long),
        pytest.param(2, 10_000, marks=pytest.mark.long),
    ],
)
def test_cycles_in_bad_weather(seed: int, cycles: int) -> None:
    """Of all primitives together, in one world."""
    result = simulate(seed, cycles)
    assert result.violations == []
    assert result.cycles.total() >= cycles
    assert result.stale > cycles / 2_000, "the faults did not bite"
    kinds = ("kill", "stop", "away", "step", "cancel")
    assert min(result.faults[kind] for kind in kinds) > cycles / 3_000
    assert min(result.cycles[action] for action in ACTIONS) > cycles / 200, (
        "something was hardly done"
    )


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [13, 14, 25, 30])
def test_histories_that_once_left_a_lost_lease_behind(seed: int) -> None:
    assert simulate(seed, 10_000).violations == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=() if bug in SMALL else pytest.mark.long) for bug in BUGS]
)
def test_a_planted_bug_is_found(bug: str) -> None:
    shown, planted = Counter[str](), BUGS[bug]
    for seed in range(1, 9):
        shown.update(each.rule for each in simulate(seed, CYCLES, bug).violations)
        if set(planted.shows) & set(shown):
            return
    pytest.fail(f"{bug}: not found, but {shown}")


PRINTED = "from tests.torture.simulate import simulate; print(simulate(3, 200).digest)"


def test_the_same_seed_is_the_same_history_in_every_process() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PRINTED],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert told.stdout.strip() == simulate(3, 200).digest
