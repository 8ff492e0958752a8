"""The public names: those that `dibs` and `dibs.sync` share, and those that each has its own of.

A new name that both share is written here twice, for programs and for type checkers. A test pins the outcome.
"""

from typing import TYPE_CHECKING

from dibs.lazy import Exports, from_modules

if TYPE_CHECKING:
    from dibs.client import override as override
    from dibs.client import set_default as set_default
    from dibs.config import Duration as Duration
    from dibs.config import LockConfig as LockConfig
    from dibs.decorator import NameTemplate as NameTemplate
    from dibs.decorator import as_current as as_current
    from dibs.decorator import current_lease as current_lease
    from dibs.errors import AcquireTimeout as AcquireTimeout
    from dibs.errors import BackendUnavailable as BackendUnavailable
    from dibs.errors import CapacityWarning as CapacityWarning
    from dibs.errors import Corrupt as Corrupt
    from dibs.errors import Deadlock as Deadlock
    from dibs.errors import DibsError as DibsError
    from dibs.errors import Forbidden as Forbidden
    from dibs.errors import ImplicitStoreWarning as ImplicitStoreWarning
    from dibs.errors import IncompatibleVersion as IncompatibleVersion
    from dibs.errors import InvalidName as InvalidName
    from dibs.errors import InvalidRequest as InvalidRequest
    from dibs.errors import LeaseLost as LeaseLost
    from dibs.errors import MissingCapability as MissingCapability
    from dibs.errors import NotConfigured as NotConfigured
    from dibs.errors import NotHeld as NotHeld
    from dibs.errors import Reentrant as Reentrant
    from dibs.errors import UnsafeTiming as UnsafeTiming
    from dibs.locks.tasklock import TaskLockConfig as TaskLockConfig
    from dibs.locks.term import LeaderConfig as LeaderConfig
    from dibs.locks.waiting import Waiting as Waiting
    from dibs.model import Capabilities as Capabilities
    from dibs.model import Finding as Finding
    from dibs.model import Holder as Holder
    from dibs.model import Status as Status
    from dibs.model import Waiter as Waiter


COMMON = {
    "dibs.config": ("Duration", "LockConfig"),
    "dibs.errors": (
        "AcquireTimeout",
        "BackendUnavailable",
        "CapacityWarning",
        "Corrupt",
        "Deadlock",
        "Forbidden",
        "ImplicitStoreWarning",
        "IncompatibleVersion",
        "InvalidName",
        "InvalidRequest",
        "LeaseLost",
        "DibsError",
        "MissingCapability",
        "NotConfigured",
        "NotHeld",
        "Reentrant",
        "UnsafeTiming",
    ),
    "dibs.client": ("override", "set_default"),
    "dibs.decorator": ("NameTemplate", "as_current", "current_lease"),
    "dibs.model": ("Capabilities", "Finding", "Holder", "Status", "Waiter"),
    "dibs.locks.term": ("LeaderConfig",),
    "dibs.locks.tasklock": ("TaskLockConfig",),
    "dibs.locks.waiting": ("Waiting",),
}

OWN = (
    "AllOf",
    "Campaign",
    "Client",
    "LeaderElection",
    "Lease",
    "Leases",
    "Lock",
    "RWLease",
    "RWLock",
    "Semaphore",
    "TaskLease",
    "TaskLock",
    "Term",
    "connect",
)
"""What each side has its own of, in `_api.py` and `sync.py`."""


def public_names(module: str, own: str) -> Exports:
    """`__all__`, `__getattr__` and `__dir__` of a side whose own names live in the module `own`."""
    return from_modules(module, {**COMMON, own: OWN})
