"""Only one at a time, everywhere: leases on shared resources, for asyncio.

`leasehold.sync` has the same names, blocking.
"""

from leasehold.config import LockConfig
from leasehold.errors import (
    AcquireTimeout,
    BackendUnavailable,
    Corrupt,
    Forbidden,
    ImplicitStoreWarning,
    IncompatibleVersion,
    InvalidName,
    LeaseholdError,
    LeaseLost,
    MissingCapability,
    NotConfigured,
    NotHeld,
    Reentrant,
    UnsafeTiming,
)
from leasehold.faces.aio import Client, Lease, Lock, Semaphore, connect
from leasehold.faces.ambient import override, set_default
from leasehold.faces.wraps import current_lease

__all__ = [
    "AcquireTimeout",
    "BackendUnavailable",
    "Client",
    "Corrupt",
    "Forbidden",
    "ImplicitStoreWarning",
    "IncompatibleVersion",
    "InvalidName",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockConfig",
    "MissingCapability",
    "NotConfigured",
    "NotHeld",
    "Reentrant",
    "Semaphore",
    "UnsafeTiming",
    "connect",
    "current_lease",
    "override",
    "set_default",
]
