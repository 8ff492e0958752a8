"""Only one at a time, everywhere: leases on shared resources, for asyncio.

`leasehold.sync` has the same names, blocking.
"""

from typing import TYPE_CHECKING

from leasehold.lazy import from_modules

if TYPE_CHECKING:
    from leasehold.config import (
        LockConfig as LockConfig,
    )
    from leasehold.errors import (
        AcquireTimeout as AcquireTimeout,
    )
    from leasehold.errors import (
        BackendUnavailable as BackendUnavailable,
    )
    from leasehold.errors import (
        Corrupt as Corrupt,
    )
    from leasehold.errors import (
        Forbidden as Forbidden,
    )
    from leasehold.errors import (
        ImplicitStoreWarning as ImplicitStoreWarning,
    )
    from leasehold.errors import (
        IncompatibleVersion as IncompatibleVersion,
    )
    from leasehold.errors import (
        InvalidName as InvalidName,
    )
    from leasehold.errors import (
        LeaseholdError as LeaseholdError,
    )
    from leasehold.errors import (
        LeaseLost as LeaseLost,
    )
    from leasehold.errors import (
        MissingCapability as MissingCapability,
    )
    from leasehold.errors import (
        NotConfigured as NotConfigured,
    )
    from leasehold.errors import (
        NotHeld as NotHeld,
    )
    from leasehold.errors import (
        Reentrant as Reentrant,
    )
    from leasehold.errors import (
        UnsafeTiming as UnsafeTiming,
    )
    from leasehold.faces.aio import (
        Client as Client,
    )
    from leasehold.faces.aio import (
        Lease as Lease,
    )
    from leasehold.faces.aio import (
        Lock as Lock,
    )
    from leasehold.faces.aio import (
        Semaphore as Semaphore,
    )
    from leasehold.faces.aio import (
        connect as connect,
    )
    from leasehold.faces.ambient import (
        override as override,
    )
    from leasehold.faces.ambient import (
        set_default as set_default,
    )
    from leasehold.faces.wraps import (
        current_lease as current_lease,
    )


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

__getattr__, __dir__ = from_modules(
    __name__,
    {
        "leasehold.config": ("LockConfig",),
        "leasehold.errors": (
            "AcquireTimeout",
            "BackendUnavailable",
            "Corrupt",
            "Forbidden",
            "ImplicitStoreWarning",
            "IncompatibleVersion",
            "InvalidName",
            "LeaseLost",
            "LeaseholdError",
            "MissingCapability",
            "NotConfigured",
            "NotHeld",
            "Reentrant",
            "UnsafeTiming",
        ),
        "leasehold.faces.ambient": (
            "override",
            "set_default",
        ),
        "leasehold.faces.aio": (
            "Client",
            "Lease",
            "Lock",
            "Semaphore",
            "connect",
        ),
        "leasehold.faces.wraps": ("current_lease",),
    },
)
