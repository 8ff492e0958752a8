"""The vectors are what the ledger answers today, and a ledger with a mistake answers otherwise."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dibs.model import Granted, Notification, Refused, Reply, Status
from dibs.stores.port import Store
from dibs.testing import ManualClock
from dibs.testing.conformance import World
from dibs.testing.conformance.vectors import PLANS, Vectors
from tests.changed_store import ChangedStore
from tests.core.plans import plan_of
from tests.core.write_vectors import written
from tests.model.mutants import MUTANTS, Mutant
from tests.stores.memory_cells import MemoryCellStore

OF_OBSERVERS = {"no allowance for an observer's clock", "a sight that outlives what was seen"}
OF_THE_LEDGER = [
    mutant
    for mutant in MUTANTS
    if mutant.plant is not nullcontext and mutant.name not in OF_OBSERVERS
]


def test_the_ledger_answers_so_today() -> None:
    for number, line in enumerate(PLANS):
        assert written(plan_of(line)) == line, f"plan {number}: see tests/core/write_vectors.py"


@pytest.mark.once
@pytest.mark.parametrize("mutant", OF_THE_LEDGER, ids=lambda mutant: mutant.name)
def test_a_ledger_with_a_mistake_is_noticed(mutant: Mutant) -> None:
    with mutant.plant():
        assert any(written(plan_of(line)) != line for line in PLANS)


type Bug = Callable[[Any], Any]


def nothing(message: Any) -> Any:
    return message


def a_token_repeats(message: Any) -> Any:
    return replace(message, token=7) if isinstance(message, Granted) else message


def tokens_fall(message: Any) -> Any:
    return replace(message, token=-message.token) if isinstance(message, Granted) else message


def a_push_has_another_token(message: Any) -> Any:
    if isinstance(message, Notification) and message.event == "granted":
        return replace(message, token=message.token + 1)
    return message


def the_last_token_is_the_one_before(message: Any) -> Any:
    if isinstance(message, Status) and message.last_token:
        return replace(message, last_token=message.last_token - 1)
    return message


def an_end_is_a_hundredth_off(message: Any) -> Any:
    """As of a store that ends entries when their ttl is over."""
    if isinstance(message, Refused):
        return replace(message, recheck_in=message.recheck_in / 1.01)
    return message


BUGS: list[Bug] = [
    a_token_repeats,
    tokens_fall,
    a_push_has_another_token,
    the_last_token_is_the_one_before,
    an_end_is_a_hundredth_off,
]


def replay(bug: Bug, tmp_path: Path) -> None:
    """On a store that answers, or notifies, as `bug` changes it."""

    class Changed(ChangedStore):
        def replies(self, replies: Sequence[Reply], commands: object) -> Sequence[Reply]:
            return list(map(bug, replies))

        def pushes(self, pushes: Sequence[Notification]) -> Sequence[Notification]:
            return list(map(bug, pushes))

    class Harness(Vectors):
        def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
            return Changed(MemoryCellStore(clock))

    harness = Harness()
    harness.test_every_vector_is_answered_as_the_ledger_does(World(harness, "async", tmp_path))


def test_a_sound_store_without_a_clock_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.testing.conformance.vectors.PLANS", PLANS[::8])
    replay(nothing, tmp_path)


@pytest.mark.once
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_a_store_without_a_clock_is_noticed(
    bug: Bug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World.notified, "__defaults__", (0.5,))  # seconds for what never comes
    with pytest.raises(AssertionError, match=r"of vectors\.jsonl"):
        replay(bug, tmp_path)
