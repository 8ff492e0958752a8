"""Cohorts in virtual time: messages lost, late and doubled, clocks uneven, processes paused and killed.

The simulation of `tests.torture`, in which the hands of a process do nothing but share its locks.
"""

from unittest.mock import patch

import pytest

from dibs.primitives.cohort_turn import Turn
from dibs.primitives.kept import KeptLease
from tests.torture.simulate import Result, simulate

CYCLES = 6_000


def counted(seed: int) -> tuple[Result, int]:
    """One history, and how often a hold was passed on in it."""
    passed = 0
    pass_on = Turn.pass_on

    def count(turn: Turn, lease: KeptLease) -> bool:
        nonlocal passed
        done = pass_on(turn, lease)
        passed += done
        return done

    with patch.object(Turn, "pass_on", count):
        return simulate(seed, CYCLES, kinds=("cohort",)), passed


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_promise_is_broken_by_passing_holds_on(seed: int) -> None:
    result, passed = counted(seed)
    assert result.violations == []
    assert passed > CYCLES / 10
    assert result.stale > 0, "no fault bit"
    assert sum(result.faults.values()) > 50
