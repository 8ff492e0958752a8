"""What is contended for, and which primitive each of it is."""

from collections.abc import Mapping
from typing import Final

PRIMITIVES: Final = ("lock", "semaphore", "rwlock", "tasklock", "leader", "allof")
"""All that can be tried; see `turns`."""


def names_of(resources: Mapping[str, int]) -> list[str]:
    """So many of each primitive: `lock-1`, `lock-2`, `semaphore-1`."""
    return [f"{what}-{number}" for what, many in resources.items() for number in range(1, many + 1)]


def primitive_of(name: str) -> str:
    """The primitive that a name, or a key with it, belongs to; empty for what has no such name."""
    own = name.rpartition("/")[2].partition("-")[0]
    return own if own in PRIMITIVES else ""
