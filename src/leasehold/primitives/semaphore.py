"""A semaphore: capacity N, take k units, each a slot that no other holder has."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self, Unpack

from leasehold.config import LockConfig
from leasehold.core.names import Kind
from leasehold.model import MANY
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.options import Options
from leasehold.primitives.primitive import PrimitiveBase


class SemaphoreBase[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """At most `capacity` units at a time; `lease.slots` are their numbers."""

    kind: ClassVar[Kind] = "semaphore"

    def __init__(self, name: str | bytes, capacity: int, **options: Unpack[Options]) -> None:
        self.capacity = _checked(capacity)
        super().__init__(name, **options)

    @classmethod
    def from_config(  # type: ignore[override]  # a semaphore is nothing without its capacity
        cls,
        name: str | bytes,
        capacity: int,
        config: LockConfig,
        *,
        on_lost: Callable[[Any], object] | None = None,
        require: Iterable[str] = (),
        client: Any = None,
    ) -> Self:
        """Describe it by a config; no environment is read."""
        capacity = _checked(capacity)
        self = super().from_config(name, config, on_lost=on_lost, require=require, client=client)
        self.capacity = capacity
        return self

    @property
    def _capacity(self) -> int:
        return self.capacity


def _checked(capacity: object) -> int:
    """Raises `TypeError` for what is no int, `ValueError` for one that is no capacity."""
    if type(capacity) is not int:
        raise TypeError(f"capacity is {capacity!r}: give an int of at least 1")
    if not 1 <= capacity < MANY:
        raise ValueError(f"capacity is {capacity!r}: give an int of at least 1, below {MANY}")
    return capacity
