"""Only one at a time, everywhere: leases on shared resources, for asyncio.

`dibs.sync` has the same names, blocking.
"""

import os
from typing import TYPE_CHECKING

if os.name == "nt":
    raise ImportError(
        "Dibs runs on Linux and macOS, not on Windows: use WSL or a container there, "
        "or call the HTTP API of a Dibs server"
    )

if TYPE_CHECKING:  # the same names as in `dibs.lazy`, for type checkers
    from dibs._api import AllOf as AllOf
    from dibs._api import Campaign as Campaign
    from dibs._api import Client as Client
    from dibs._api import LeaderElection as LeaderElection
    from dibs._api import Lease as Lease
    from dibs._api import Leases as Leases
    from dibs._api import Lock as Lock
    from dibs._api import RWLease as RWLease
    from dibs._api import RWLock as RWLock
    from dibs._api import Semaphore as Semaphore
    from dibs._api import TaskLease as TaskLease
    from dibs._api import TaskLock as TaskLock
    from dibs._api import Term as Term
    from dibs._api import connect as connect
    from dibs._api import current_lease as current_lease
    from dibs.client import override as override
    from dibs.client import set_default as set_default
    from dibs.config import Duration as Duration
    from dibs.config import LockConfig as LockConfig
    from dibs.decorator import NameTemplate as NameTemplate
    from dibs.decorator import as_current as as_current
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
    from dibs.locks.election import LeaderConfig as LeaderConfig
    from dibs.locks.tasklock import TaskLockConfig as TaskLockConfig
    from dibs.locks.waiting import Waiting as Waiting
    from dibs.model import Capabilities as Capabilities
    from dibs.model import Finding as Finding
    from dibs.model import Holder as Holder
    from dibs.model import Status as Status
    from dibs.model import Waiter as Waiter

    __all__: list[str]
    __version__: str
else:
    from dibs.lazy import pass_through, public_names

    __all__, __getattr__, __dir__ = public_names(__name__, "dibs._api")
    pass_through("dibs.sync")
    del os, public_names, pass_through
