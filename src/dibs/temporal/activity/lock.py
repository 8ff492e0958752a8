"""The lock that the running activity holds, as the activity sees it."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from temporalio import activity

from dibs.config import Duration
from dibs.errors import DibsError, LeaseLost, NotHeld

if TYPE_CHECKING:
    from dibs import Lease

_current: "ContextVar[ActivityLock]" = ContextVar("dibs_activity_lock")


class ActivityLock:
    """One slot of a lock, held while an activity runs."""

    __slots__ = ("_lease", "_silent", "activity", "name", "owner", "slot", "token", "waited")

    def __init__(
        self, lease: "Lease", *, activity: str, name: str, owner: str, waited: float
    ) -> None:
        self._lease = lease
        self._silent = False
        """The activity missed its heartbeats, so the lease is no longer renewed."""
        self.activity = activity
        """The function that needs it."""
        self.name = name
        """`{application}:{lock}`, as in lists of the store."""
        self.slot: int = lease.slots[0]
        """Number of its slot, from 0. Nobody else holds that slot."""
        self.token: int = lease.token
        """The fencing token, which rises with every grant. Send it with each write."""
        self.owner = owner
        """`{application}:{run id}:{activity id}`, as in lists of the store."""
        self.waited = waited
        """Seconds that this attempt waited for it in its worker."""

    @property
    def key(self) -> str:
        """`{application}:{lock}:{slot}`."""
        return f"{self.name}:{self.slot}"

    @property
    def remaining(self) -> float:
        """Seconds until its deadline, unless it is renewed. 0 once it is lost.

        Raises `RuntimeError` in a process pool, where it is not known.
        """
        return self._lease.remaining

    @property
    def lost(self) -> bool:
        """It ended before the activity did. Another can hold the slot now."""
        return self._silent or self._lease.lost

    @property
    def reason(self) -> str | None:
        """Why it was lost: `expired`, `revoked`, `max_hold` or `closed`. None if it was not lost."""
        return "expired" if self._silent else self._lease.reason

    def ensure(self, needs: Duration = 0) -> None:
        """Raise `LeaseLost` unless at least `needs` (seconds, or "2s") are left before the deadline.

        Call it right before each step that relies on the lock.
        """
        if self._silent:
            raise loss_of(self)
        self._lease.ensure(needs)

    def __repr__(self) -> str:
        state = self.reason or "held"
        return f"<ActivityLock {self.key}, token {self.token}, {state}>"


class LockOfOtherProcess(ActivityLock):
    """In a process pool: the lease is in the worker's process, which reports a loss by cancellation."""

    __slots__ = ()

    def __init__(self, original: ActivityLock) -> None:
        for each in ("activity", "name", "owner", "slot", "token", "waited"):
            setattr(self, each, getattr(original, each))

    @property
    def remaining(self) -> float:
        """Raises `RuntimeError`: it is renewed in another process."""
        raise RuntimeError(
            "in a process pool the time that is left isn't known: ask `lost`, or ensure()"
        )

    @property
    def lost(self) -> bool:
        """The activity was cancelled, by the loss of its lock or by its workflow."""
        return activity.is_cancelled()

    @property
    def reason(self) -> str | None:
        """`closed` once it is lost: the real reason is not known here."""
        return "closed" if self.lost else None

    def ensure(self, needs: Duration = 0) -> None:
        """Raise `LeaseLost` if it is lost."""
        if self.lost:
            raise LeaseLost(
                "the activity was cancelled, as its lock was lost or its workflow said so"
            )


def stop_renewing(lock: ActivityLock) -> None:
    """The server has given up on a silent activity: let the lease expire."""
    with suppress(DibsError):
        lock._lease.detach()
    lock._silent = True


def loss_of(lock: ActivityLock) -> LeaseLost:
    """The error for a lock that was lost."""
    if lock._silent:
        return LeaseLost("the activity sent no heartbeat in time, so its lock is no longer renewed")
    try:
        lock._lease.ensure()
    except LeaseLost as error:
        return error
    except DibsError:
        pass
    return LeaseLost("the lock was lost")


def current_lock() -> ActivityLock:
    """The lock of the running activity. Raises `NotHeld` outside of an activity with `needs_lock`."""
    try:
        return _current.get()
    except LookupError:
        raise NotHeld("no activity that was decorated with needs_lock() is running here") from None


def held_for(activity: str) -> bool:
    """Whether a lock is held for that activity here."""
    lock = _current.get(None)
    return lock is not None and lock.activity == activity


@contextmanager
def as_current(lock: ActivityLock) -> Generator[None]:
    """Make it the current lock in this block."""
    token = _current.set(lock)
    try:
        yield
    finally:
        _current.reset(token)
