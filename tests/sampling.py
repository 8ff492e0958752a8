"""How much of a sweep or a property CI tries. `make torture` tries the whole."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=30, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=1_000)


EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
"""CI tries one of so many of a long list."""


def examples(number: int) -> int:
    """Number of examples for a property that needs `number`, scaled by the profile of Hypothesis.

    `quick`, which `tests/conftest.py` loads, scales by 0.3 and draws the same examples in each run.
    `thorough` scales by 10.
    """
    profile = settings.default
    assert profile is not None
    return max(1, number * profile.max_examples // 100)


def sampled(values: Iterable[str], *, every: int) -> list[Any]:
    """Parameters of a test: the first of each `every` values runs always, the others are marked `long`."""
    return [
        pytest.param(value, marks=() if number % every == 0 else pytest.mark.long)
        for number, value in enumerate(values)
    ]
