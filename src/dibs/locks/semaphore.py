"""A semaphore: capacity N; a holder takes k units, each a slot that no other holder has."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Never, Self, Unpack

from dibs.config import LockConfig
from dibs.core.names import Kind, shown, split_key
from dibs.errors import CapacityWarning
from dibs.locks.base import PrimitiveBase
from dibs.locks.lease import LeaseBase
from dibs.locks.messages import format_key
from dibs.locks.requests import ClientLockOptions, shown_as
from dibs.locks.waiting import OnWait
from dibs.model import MAX_CAPACITY, Holder, Promise, Status


class SemaphoreBase[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """At most `capacity` units at a time; `lease.slots` are their numbers."""

    kind: ClassVar[Kind] = "semaphore"

    _takes: ClassVar[str] = "a name and a capacity"

    @shown_as("Semaphore.__init__")
    def __init__(
        self,
        name: str | bytes,
        capacity: int,
        *more: Never,
        **options: Unpack[ClientLockOptions[LeaseT]],
    ) -> None:
        """Describe a semaphore of `capacity` units, with the options of a `Lock`."""
        self.capacity: int = _checked(capacity)
        if capacity > 1:
            _refuse_reentrant(options.setdefault("reentrant", False))
        super().__init__(name, *more, **options)

    @classmethod
    def from_config(  # type: ignore[override]  # a semaphore is nothing without its capacity
        cls,
        name: str | bytes,
        capacity: int,
        config: LockConfig,
        *,
        on_lost: Callable[[LeaseT], object] | None = None,
        on_wait: OnWait | None = None,
        require: Promise | Iterable[Promise] = (),
        client: Any = None,
    ) -> Self:
        """Make one from a config, without reading the environment."""
        capacity = _checked(capacity)
        if capacity > 1:
            _refuse_reentrant(config.reentrant)
        self = super().from_config(
            name, config, on_lost=on_lost, on_wait=on_wait, require=require, client=client
        )
        self.capacity = capacity
        return self

    @property
    def _capacity(self) -> int:
        return self.capacity

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(split_key(self.key)[1])}, capacity {self.capacity}>"

    # Grants do not return the capacity that others declared, to save a round trip. It is compared only
    # where a status or a refusal is at hand.

    def _check_holders(self, holders: tuple[Holder, ...]) -> None:
        highest = max((slot for each in holders for slot in each.slots), default=-1)
        if highest >= self.capacity:
            self._warn_of(f"slot {highest} is held, so it was of at least {highest + 1}")

    async def _status(self) -> Status:
        status = await super()._status()
        if (status.holders or status.waiting) and status.capacity != self.capacity:
            self._warn_of(f"it was last acquired with one of {status.capacity}")
        return status

    def _warn_of(self, found: str) -> None:
        warnings.warn(
            f"{format_key(self.key)} has a capacity of {self.capacity} here, and {found}: the newest "
            "counts for all, so let them agree",
            CapacityWarning,
            stacklevel=2,
        )


def _refuse_reentrant(wanted: object) -> None:
    if wanted is True:
        raise TypeError(
            "reentrant= needs a lock that one task or thread holds alone: a semaphore with a capacity above "
            "1 grants another slot to a holder that acquires again"
        )


def _checked(capacity: object) -> int:
    """Raises `TypeError` for what is no int, `ValueError` for one that is no capacity."""
    if type(capacity) is not int:
        raise TypeError(f"capacity is {capacity!r}: give an int of at least 1")
    if not 1 <= capacity <= MAX_CAPACITY:
        raise ValueError(f"capacity is {capacity!r}: give an int from 1 to {MAX_CAPACITY}")
    return capacity
