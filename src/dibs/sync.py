"""Only one at a time, everywhere: leases on shared resources, for threads.

`dibs` has the same names, for asyncio.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.faces.blocking import Lease as Lease
    from dibs.faces.blocking import Lock as Lock
    from dibs.faces.blocking import Semaphore as Semaphore
    from dibs.faces.blocking_allof import AllOf as AllOf
    from dibs.faces.blocking_allof import Leases as Leases
    from dibs.faces.blocking_client import Client as Client
    from dibs.faces.blocking_client import connect as connect
    from dibs.faces.blocking_election import Campaign as Campaign
    from dibs.faces.blocking_election import LeaderElection as LeaderElection
    from dibs.faces.blocking_election import Term as Term
    from dibs.faces.blocking_rwlock import RWLease as RWLease
    from dibs.faces.blocking_rwlock import RWLock as RWLock
    from dibs.faces.blocking_tasklock import TaskLease as TaskLease
    from dibs.faces.blocking_tasklock import TaskLock as TaskLock
    from dibs.faces.common import *  # noqa: F403

    __all__: list[str]
else:
    from dibs.faces.common import homes
    from dibs.lazy import from_modules

    __all__, __getattr__, __dir__ = from_modules(__name__, homes("blocking"))
    del from_modules, homes
