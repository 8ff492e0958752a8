"""Activities in a pool of processes: what they can know of their lock there."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from temporalio import activity

from dibs.config import Duration
from dibs.errors import LeaseLost
from dibs.temporal.activity.lock import ActivityLock, Holding, holding


@dataclass(frozen=True, slots=True)
class About:
    """What travels along."""

    activity: str
    name: str
    slot: int
    token: int
    owner: str
    waited: float

    def lock(self, kept: Holding) -> ActivityLock:
        """The lock, as it is held here or there."""
        return ActivityLock(**asdict(self), holding=kept)


class HeldElsewhere:
    """A lease that the worker's own process keeps, and tells of by the activity's cancellation."""

    @property
    def remaining(self) -> float:
        """Raises `RuntimeError`: it is renewed in another process."""
        raise RuntimeError(
            "in a process pool the time that is left isn't known: ask `lost`, or ensure()"
        )

    @property
    def lost(self) -> bool:
        """The activity was cancelled: by the loss of its lock, or by its workflow."""
        return activity.is_cancelled()

    @property
    def reason(self) -> str | None:
        """Not told here."""
        return "closed" if self.lost else None

    def ensure(self, needs: Duration = 0) -> None:
        """Raise `LeaseLost` if it is lost."""
        if self.lost:
            raise LeaseLost(
                "the activity was cancelled, as its lock was lost or its workflow said so"
            )


def call_in_process(function: Callable[..., Any], about: About, *args: Any) -> Any:
    """Runs in the pool's process."""
    with holding(about.lock(HeldElsewhere())):
        return function(*args)
