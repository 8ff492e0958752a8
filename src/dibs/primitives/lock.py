"""A lock: capacity 1, take 1, renewed while it is held."""

from typing import ClassVar

from dibs.core.names import Kind
from dibs.primitives.lease import LeaseBase
from dibs.primitives.primitive import PrimitiveBase


class LockBase[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """One holder at a time."""

    kind: ClassVar[Kind] = "lock"
