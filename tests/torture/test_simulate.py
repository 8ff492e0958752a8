"""Small runs of the simulation, and proof that it would find what it is for; see `__main__` for full ones."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from tests.torture.actions import ACTIONS
from tests.torture.bugs import BUGS
from tests.torture.simulate import Result, simulate

KINDS = {
    "lock": {"lock", "nested", "crossed", "reentrant", "delayed"},
    "semaphore": {"semaphore", "elastic"},
    "rwlock": {"rwlock"},
    "tasklock": {"tasklock"},
    "leader": {"leader", "campaign", "run"},
    "allof": {"allof"},
}
"""What is done with each primitive."""


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    ("seed", "cycles"),
    [
        (1, 2_500),
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


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [13, 14, 25, 30])
def test_histories_that_once_left_a_lost_lease_behind(seed: int) -> None:
    assert simulate(seed, 10_000).violations == []


@pytest.mark.once
@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    shown, planted = Counter[str](), BUGS[bug]
    for seed in range(1, 9):
        shown.update(each.rule for each in simulate(seed, planted.cycles, bug).violations)
        if planted.shows & set(shown):
            return
    pytest.fail(f"{bug}: not found, but {shown}")


@pytest.mark.once
@pytest.mark.parametrize("primitive", KINDS)
def test_bugs_are_planted_in_every_primitive(primitive: str) -> None:
    actions = KINDS[primitive]
    planted = [name for name, bug in BUGS.items() if actions & set(bug.kinds)]
    assert len(planted) >= 3
    assert actions <= set(ACTIONS)


# ---- the same seed ----------------------------------------------------------------------------------

PRINTED = "from tests.torture.simulate import simulate; print(simulate(3, 200).digest)"


@cache
def here() -> Result:
    return simulate(3, 200)


@pytest.mark.once
def test_the_same_seed_is_the_same_history() -> None:
    assert simulate(3, 200).digest == here().digest
    assert simulate(4, 200).digest != here().digest


@pytest.mark.once
@pytest.mark.parametrize("hashes", ["0", "4711"])
def test_and_in_every_process(hashes: str) -> None:
    path = os.pathsep.join(filter(None, sys.path))
    told = subprocess.run(
        [sys.executable, "-c", PRINTED],
        env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert told.stdout.strip() == here().digest
