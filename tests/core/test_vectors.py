"""The vectors are what the ledger answers today, and a ledger with a mistake answers otherwise."""

import json
from contextlib import nullcontext
from typing import Any

import pytest

from dibs.core.codec import decode_command
from dibs.testing.conformance.vectors import PLANS
from tests.core.write_vectors import written
from tests.model.mutants import MUTANTS, Mutant

OF_OBSERVERS = {"no allowance for an observer's clock", "a sight that outlives what was seen"}
OF_THE_LEDGER = [
    mutant
    for mutant in MUTANTS
    if mutant.plant is not nullcontext and mutant.name not in OF_OBSERVERS
]


def plan_of(line: str) -> list[Any]:
    return [_step_of(step) for step in json.loads(line)["steps"]]


def _step_of(step: dict[str, Any]) -> Any:
    if "wait" in step:
        return step["wait"]
    if "wall" in step:
        return round(step["wall"] * 1e6)
    return [decode_command(command, bytes.fromhex(key)) for key, command in step["batch"]]


def answers(line: str) -> str:
    return json.dumps(written(plan_of(line)), separators=(",", ":"))


def test_the_ledger_answers_so_today() -> None:
    for number, line in enumerate(PLANS):
        assert answers(line) == line, f"plan {number}: see tests/core/write_vectors.py"


@pytest.mark.once
@pytest.mark.parametrize("mutant", OF_THE_LEDGER, ids=lambda mutant: mutant.name)
def test_a_ledger_with_a_mistake_is_noticed(mutant: Mutant) -> None:
    with mutant.plant():
        assert any(answers(line) != line for line in PLANS)
