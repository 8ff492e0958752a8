"""A semaphore: capacity N, take k units, each a slot that no other holder has."""

from typing import Any, ClassVar

from leasehold.core.names import Kind
from leasehold.model import MANY
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.primitive import PrimitiveBase


class SemaphoreBase[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """At most `capacity` units at a time; `lease.slots` are their numbers."""

    kind: ClassVar[Kind] = "semaphore"

    def __init__(self, name: str | bytes, capacity: int, **options: Any) -> None:
        if type(capacity) is not int or not 1 <= capacity < MANY:
            raise ValueError(f"capacity is {capacity!r}: give an int of at least 1")
        self.capacity = capacity
        super().__init__(name, **options)

    @property
    def _capacity(self) -> int:
        return self.capacity
