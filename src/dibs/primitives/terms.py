"""How a lease is to be held, as its primitive describes it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Terms(NamedTuple):
    """How a lease is to be held."""

    ttl: float
    owner: str
    units: int
    exclusive: bool
    """A nested wait for its key would never end: it has a capacity of 1, or readers and writers."""
    auto_renew: bool = True
    max_hold: float | None = None
    on_lost: Callable[[Any], object] | None = None
    more: Any = None
    """What its kind of primitive says besides."""
    detects: bool = True
    """Whoever waits to change it looks for a circle of waiters that it is in."""
