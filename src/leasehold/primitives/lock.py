"""A lock: capacity 1, take 1, renewed while it is held."""

from typing import ClassVar

from leasehold.core.names import Kind
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.primitive import PrimitiveBase


class LockBase[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """One holder at a time."""

    kind: ClassVar[Kind] = "lock"
    _can_be_shared: ClassVar[bool] = True
