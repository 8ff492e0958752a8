"""The lock that the running activity holds, as the activity sees it."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from dibs.config import Duration
from dibs.errors import NotHeld

_current: "ContextVar[ActivityLock]" = ContextVar("dibs_activity_lock")


class Holding(Protocol):
    """What is known of a lease where the activity runs."""

    @property
    def remaining(self) -> float:
        """Seconds until its deadline."""

    @property
    def lost(self) -> bool:
        """It ended before it was given up."""

    @property
    def reason(self) -> str | None:
        """Why it was lost."""

    def ensure(self, needs: Duration = 0) -> None:
        """Raise unless that much time is left."""


class ActivityLock:
    """One slot of a lock, held while an activity runs."""

    __slots__ = ("_holding", "activity", "name", "owner", "slot", "token", "waited")

    def __init__(
        self,
        *,
        activity: str,
        name: str,
        slot: int,
        token: int,
        owner: str,
        waited: float,
        holding: Holding,
    ) -> None:
        self.activity = activity
        """The function that needs it."""
        self.name = name
        """`{application}:{lock}`, as lists of the store show it."""
        self.slot = slot
        """Which of the slots, from 0: nobody else has that one."""
        self.token = token
        """The fencing token: rises with every grant. Send it along with what is written."""
        self.owner = owner
        """`{application}:{run id}:{activity id}`, as lists of the store show it."""
        self.waited = waited
        """How long this attempt waited for it in its worker, in seconds."""
        self._holding = holding

    @property
    def key(self) -> str:
        """`{application}:{lock}:{slot}`."""
        return f"{self.name}:{self.slot}"

    @property
    def remaining(self) -> float:
        """The seconds until its deadline, unless it is renewed; 0 once it is lost.

        In a process pool it isn't known: raises `RuntimeError`.
        """
        return self._holding.remaining

    @property
    def lost(self) -> bool:
        """It ended before the activity did: another may hold the slot now."""
        return self._holding.lost

    @property
    def reason(self) -> str | None:
        """Why it was lost: `expired`, `revoked`, `max_hold` or `closed`; None while it wasn't."""
        return self._holding.reason

    def ensure(self, needs: Duration = 0) -> None:
        """Raise `LeaseLost` unless at least `needs` (seconds, or "2s") are left before the deadline.

        To be called right before each step that relies on the lock.
        """
        self._holding.ensure(needs)

    def __repr__(self) -> str:
        state = self.reason or "held"
        return f"<ActivityLock {self.key}, token {self.token}, {state}>"


def current_lock() -> ActivityLock:
    """The lock that the running activity holds. Raises `NotHeld` outside of one that needs a lock."""
    try:
        return _current.get()
    except LookupError:
        raise NotHeld("no activity that was decorated with needs_lock() is running here") from None


def held_for(activity: str) -> bool:
    """Whether a lock is held for that activity, by whoever runs it here."""
    lock = _current.get(None)
    return lock is not None and lock.activity == activity


@contextmanager
def holding(lock: ActivityLock) -> Generator[None]:
    """In this block it is the current lock."""
    token = _current.set(lock)
    try:
        yield
    finally:
        _current.reset(token)
