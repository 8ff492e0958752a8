"""The lock that the running activity holds, as the activity sees it."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from temporalio import activity
from temporalio.exceptions import CancelledError

from dibs.config import Duration
from dibs.errors import DibsError, LeaseLost, NotHeld
from dibs.temporal.activity.errors import called_too_late, lost, other_lock

if TYPE_CHECKING:
    from dibs import Lease

_current: "ContextVar[ActivityLock]" = ContextVar("dibs_activity_lock")


class ActivityLock:
    """One slot of a lock, held while an activity runs."""

    def __init__(
        self,
        lease: "Lease",
        *,
        activity: str,
        lock_name: str | bytes,
        name: str,
        owner: str,
        waited: float,
    ) -> None:
        self._lease = lease
        self._lock_name = lock_name
        """The name that the activity's arguments made."""
        self._silent = False
        """The activity missed its heartbeats, so the lease is no longer renewed."""
        self._has_ended = False
        """The activity has ended, and the lock is released or soon will be."""
        self.activity: str = activity
        """The function that needs it."""
        self.name: str = name
        """`{application}:{lock}`, as in lists of the store."""
        self.slot: int = lease.slots[0]
        """Number of its slot, from 0. Nobody else holds that slot."""
        self.token: int = lease.token
        """The fencing token, which rises with every grant. Send it with each write."""
        self.owner: str = owner
        """`{application}:{run id}:{activity id}`, as in lists of the store."""
        self.waited: float = waited
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
        """Whether it ended before the activity did. Another can hold the slot now."""
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

    def _refuse_lost(self) -> None:
        """Raises the error with which an activity fails that has lost its lock."""
        if self.lost:
            raise lost(loss_of(self))

    def __repr__(self) -> str:
        state = self.reason or "held"
        return f"<ActivityLock {self.key}, token {self.token}, {state}>"


class LockOfOtherProcess(ActivityLock):
    """In a process pool: the lease is in the worker's process, which reports a loss by cancellation."""

    def __init__(self, original: ActivityLock) -> None:
        known = vars(original).items()
        vars(self).update({name: value for name, value in known if name != "_lease"})

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

    def _refuse_lost(self) -> None:
        """Raises Temporal's own error, with which a cancelled activity ends."""
        if self.lost:
            raise CancelledError("cancelled, or its lock was lost")


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


def is_held_for(activity: str, lock_name: str | bytes) -> bool:
    """Whether the lock of this name is held for that activity here."""
    lock = lock_of(activity)
    return lock is not None and not lock._has_ended and lock._lock_name == lock_name


def lock_of(activity: str) -> ActivityLock | None:
    """The current lock if it is of that activity. It may have ended."""
    lock = _current.get(None)
    return lock if lock is not None and lock.activity == activity else None


def refuse_without(lock: ActivityLock, lock_name: str | bytes) -> None:
    """Raises `ApplicationError` unless the lock is held, and is the one of this name."""
    if lock._has_ended:
        raise called_too_late(lock.activity)
    if lock._lock_name != lock_name:
        raise other_lock(lock.activity, held=lock._lock_name, needed=lock_name)
    lock._refuse_lost()


@contextmanager
def as_current(lock: ActivityLock) -> Generator[None]:
    """Make it the current lock in this block, with which the activity ends."""
    token = _current.set(lock)
    try:
        yield
    finally:
        lock._has_ended = True
        _current.reset(token)
