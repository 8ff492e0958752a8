"""How a lease is to be held, as its primitive describes it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Terms(NamedTuple):
    """How a lease is to be held."""

    ttl: float
    owner: str
    units: int
    exclusive: bool
    """Its key has a capacity of 1, so a nested wait for it would never end."""
    auto_renew: bool = True
    max_hold: float | None = None
    on_lost: Callable[[Any], object] | None = None
