"""A lock for workflow code."""

from typing import ClassVar

from dibs.config import Duration
from dibs.temporal.permits.pool import OnHolderClose
from dibs.temporal.semaphore import Semaphore


class Lock(Semaphore):
    """One workflow at a time holds it: a semaphore with the one slot "0"; see there for the rest.

    Without `fair` a `Lock` and a `Semaphore` of one name, capacity 1, exclude each other.
    """

    kind: ClassVar[str] = "lock"

    def __init__(
        self,
        name: str,
        *,
        task_queue: str | None = None,
        fair: bool = False,
        on_holder_close: OnHolderClose = "safe",
        quarantine: Duration = 0.0,
        armed: bool = True,
    ) -> None:
        super().__init__(
            name,
            capacity=1,
            task_queue=task_queue,
            fair=fair,
            on_holder_close=on_holder_close,
            quarantine=quarantine,
            armed=armed,
        )

    def __repr__(self) -> str:
        return f"Lock({self.resource!r}{', fair=True' if self.fair else ''})"
