"""Only one at a time, everywhere: leases on shared resources, for threads.

`leasehold` has the same names, for asyncio.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.faces.blocking import Lease as Lease
    from leasehold.faces.blocking import Lock as Lock
    from leasehold.faces.blocking import Semaphore as Semaphore
    from leasehold.faces.blocking_allof import AllOf as AllOf
    from leasehold.faces.blocking_allof import Leases as Leases
    from leasehold.faces.blocking_client import Client as Client
    from leasehold.faces.blocking_client import connect as connect
    from leasehold.faces.blocking_election import Campaign as Campaign
    from leasehold.faces.blocking_election import LeaderElection as LeaderElection
    from leasehold.faces.blocking_election import Term as Term
    from leasehold.faces.blocking_rwlock import RWLease as RWLease
    from leasehold.faces.blocking_rwlock import RWLock as RWLock
    from leasehold.faces.blocking_tasklock import TaskLease as TaskLease
    from leasehold.faces.blocking_tasklock import TaskLock as TaskLock
    from leasehold.faces.common import *  # noqa: F403

    __all__: list[str]
else:
    from leasehold.faces.common import homes
    from leasehold.lazy import from_modules

    __all__, __getattr__, __dir__ = from_modules(__name__, homes("blocking"))
    del from_modules, homes
