"""The blocking face of the task lock."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from dibs.config import UNSET, Duration, Unset
from dibs.faces.blocking import Lease, Resource
from dibs.faces.loops import refuse_in_loop
from dibs.primitives.tasklease import TaskLeaseBase
from dibs.primitives.tasklock import TaskLockBase
from dibs.runtime.step import step

if TYPE_CHECKING:
    from dibs.faces.blocking_client import Client


class TaskLease(TaskLeaseBase, Lease):
    """The lease of a task lock: never renewed, and retained after its release until `min_hold` is over."""

    __slots__ = ()


class TaskLock(TaskLockBase[TaskLease], Resource[TaskLease]):
    """One start of a task at a time, and none within `min_hold` of the one before.

    Contention: one try. It raises `AcquireTimeout`, which names the holder, or the time until it is free.
    Expiry: nothing is renewed, so others can start after `max_hold`, whatever happens to the holder. A body
    that takes longer is reported at its end, as a thread cannot be interrupted; with `cancel=True` the end
    raises `LeaseLost`. Durations are seconds, or texts such as "30s".
    """

    _lease_type = TaskLease

    @staticmethod
    def wraps[F: Callable[..., Any]](
        template: str,
        *,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        on_busy: Literal["raise", "skip"] = "raise",
        default: object = None,
        cancel: bool | Unset = UNSET,
        note: str | Unset = UNSET,
        label: str | Unset = UNSET,
        on_lost: Callable[[Any], object] | None = None,
        require: Iterable[str] = (),
        client: "Client | str | None" = None,
        env_prefix: str | None = None,
        env_load: bool = True,
    ) -> Callable[[F], F]:
        """Like `Lock.wraps`, with a task lock; `on_busy="skip"` skips a call that may not start."""
        from dibs.faces.wraps_task import wraps_task

        hold = {
            "min_hold": min_hold,
            "max_hold": max_hold,
            "cancel": cancel,
            "note": note,
            "label": label,
        }
        about = {"on_lost": on_lost, "require": require, "client": client}
        loading = {"env_prefix": env_prefix, "env_load": env_load}
        return wraps_task(template, on_busy, default, hold, loading, about)

    def acquire(self, *, note: str | None = None) -> TaskLease:
        """Start, if it may: a lease, which is a context manager. Raises `AcquireTimeout` at once."""
        refuse_in_loop(self)
        return step(self._acquire(1, 0, None, note))

    def try_acquire(self, *, note: str | None = None) -> TaskLease | None:
        """Start if possible; None if it is running, or ran too recently."""
        refuse_in_loop(self)
        return step(self._try(1, None, note))
