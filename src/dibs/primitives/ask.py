"""What is asked for, and what was got."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Ask(NamedTuple):
    """What is wanted."""

    key: bytes
    owner: str
    ttl: float
    units: int = 1
    capacity: int = 1
    priority: int = 0
    note: str = ""
    floor: int = 0
    lock_delay: float = 0.0
    detects: bool = True
    """Whoever waits looks for a circle of waiters that it is in."""
    address: str = ""
    trace: str = ""


class Grant(NamedTuple):
    """What was got."""

    id: str
    token: int
    slots: tuple[int, ...]
    since: float
    """When it was asked for, or pushed, at the earliest."""
    deadline: float
    claim_by: float | None
    """It was pushed, stands for a window, and should be claimed by then if it is still wanted."""
    doubtful: bool
    """A copy of its Acquire may still be under way."""
    uncommitted_at: float | None = None
    """When it was asked for in a transaction of the user's own, which may not have committed."""


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
