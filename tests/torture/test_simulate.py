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
def test_cycles_in_bad_weather() -> None:
    """Of all primitives together, in one world. `python -m tests.torture simulate` does a million."""
    cycles = 1_500
    result = simulate(1, cycles)
    assert result.violations == []
    assert result.cycles.total() >= cycles
    assert result.stale > 0, "the faults did not bite"
    assert min(result.faults[kind] for kind in ("kill", "stop", "away", "step", "cancel")) > 0
    assert min(result.cycles[each] for each in ACTIONS) > 7, "something was hardly done"


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
