"""The names that both worlds share: what `leasehold` and `leasehold.sync` have in common.

A new public name is written here twice, for programs and for type checkers, or, if each world has one
of its own, in `WORLD` and in the two packages. A test pins the outcome.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leasehold.config import Duration as Duration
    from leasehold.config import LockConfig as LockConfig
    from leasehold.errors import AcquireTimeout as AcquireTimeout
    from leasehold.errors import BackendUnavailable as BackendUnavailable
    from leasehold.errors import CapacityWarning as CapacityWarning
    from leasehold.errors import Corrupt as Corrupt
    from leasehold.errors import Deadlock as Deadlock
    from leasehold.errors import Forbidden as Forbidden
    from leasehold.errors import ImplicitStoreWarning as ImplicitStoreWarning
    from leasehold.errors import IncompatibleVersion as IncompatibleVersion
    from leasehold.errors import InvalidName as InvalidName
    from leasehold.errors import InvalidRequest as InvalidRequest
    from leasehold.errors import LeaseholdError as LeaseholdError
    from leasehold.errors import LeaseLost as LeaseLost
    from leasehold.errors import MissingCapability as MissingCapability
    from leasehold.errors import NotConfigured as NotConfigured
    from leasehold.errors import NotHeld as NotHeld
    from leasehold.errors import Reentrant as Reentrant
    from leasehold.errors import UnsafeTiming as UnsafeTiming
    from leasehold.faces.ambient import override as override
    from leasehold.faces.ambient import set_default as set_default
    from leasehold.faces.wraps import as_current as as_current
    from leasehold.faces.wraps import current_lease as current_lease
    from leasehold.model import Capabilities as Capabilities
    from leasehold.model import Finding as Finding
    from leasehold.model import Holder as Holder
    from leasehold.model import Status as Status
    from leasehold.model import Waiter as Waiter
    from leasehold.primitives.election_config import LeaderConfig as LeaderConfig
    from leasehold.primitives.tasklock import TaskLockConfig as TaskLockConfig
    from leasehold.primitives.template import NameTemplate as NameTemplate
    from leasehold.primitives.watching import Waiting as Waiting

COMMON = {
    "leasehold.config": ("Duration", "LockConfig"),
    "leasehold.errors": (
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
        "LeaseholdError",
        "MissingCapability",
        "NotConfigured",
        "NotHeld",
        "Reentrant",
        "UnsafeTiming",
    ),
    "leasehold.faces.ambient": ("override", "set_default"),
    "leasehold.faces.wraps": ("as_current", "current_lease"),
    "leasehold.model": ("Capabilities", "Finding", "Holder", "Status", "Waiter"),
    "leasehold.primitives.election_config": ("LeaderConfig",),
    "leasehold.primitives.tasklock": ("TaskLockConfig",),
    "leasehold.primitives.template": ("NameTemplate",),
    "leasehold.primitives.watching": ("Waiting",),
}

WORLD = {
    "": ("Lease", "Lock", "Semaphore"),
    "_client": ("Client", "connect"),
    "_allof": ("AllOf", "Leases"),
    "_rwlock": ("RWLease", "RWLock"),
    "_tasklock": ("TaskLease", "TaskLock"),
    "_election": ("Campaign", "LeaderElection", "Term"),
}
"""What each world has its own of, by the end of the name of the module that it is in."""


def homes(world: Literal["aio", "blocking"]) -> dict[str, tuple[str, ...]]:
    """The modules that the public names of a world live in."""
    own = {f"leasehold.faces.{world}{part}": names for part, names in WORLD.items()}
    return {**COMMON, **own}
