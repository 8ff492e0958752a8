"""What a caller asks for, and the grant that comes of it."""

import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

from dibs.model import Acquire

BYTES = 18  # 144 bits are a whole number of base64 letters
LETTERS = 24
DRAWN = 64

_drawn: list[str] = []


def new_id() -> str:
    """An id that nobody can guess: the capability to renew and release one lease."""
    try:
        return _drawn.pop()
    except IndexError:
        text = urlsafe_b64encode(os.urandom(BYTES * DRAWN)).decode()
        fresh = [text[at : at + LETTERS] for at in range(0, len(text), LETTERS)]
        mine = fresh.pop()
        _drawn.extend(fresh)
        return mine


os.register_at_fork(after_in_child=_drawn.clear)  # ids that the parent may still use


LEAST_PATIENCE = 30.0
"""Seconds that the store keeps a silent waiter in the queue, also if its ttl is shorter."""


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
    held: int = 0
    """Units of these that it holds already, and does not ask for again: it upgrades."""

    def command(self, lease_id: str, inbox: str, *, queue: bool = False) -> Acquire:
        """The command that asks the store for it: once, or with a position in the queue."""
        return Acquire(
            self.key,
            lease_id,
            self.owner,
            self.ttl,
            self.units - self.held,
            self.capacity,
            queue,
            max(self.ttl, LEAST_PATIENCE),
            self.priority,
            self.note,
            floor=self.floor,
            lock_delay=self.lock_delay,
            inbox=inbox,
            address=self.address,
            trace=self.trace,
        )


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
    seq: int = 0
    """Number of the newest Resize, of a lease that was attached."""


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
