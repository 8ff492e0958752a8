"""Only one at a time, everywhere: leases on shared resources, for asyncio.

`leasehold.sync` has the same names, blocking.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.faces.aio import Lease as Lease
    from leasehold.faces.aio import Lock as Lock
    from leasehold.faces.aio import Semaphore as Semaphore
    from leasehold.faces.aio_allof import AllOf as AllOf
    from leasehold.faces.aio_allof import Leases as Leases
    from leasehold.faces.aio_client import Client as Client
    from leasehold.faces.aio_client import connect as connect
    from leasehold.faces.aio_election import Campaign as Campaign
    from leasehold.faces.aio_election import LeaderElection as LeaderElection
    from leasehold.faces.aio_election import Term as Term
    from leasehold.faces.aio_rwlock import RWLease as RWLease
    from leasehold.faces.aio_rwlock import RWLock as RWLock
    from leasehold.faces.aio_tasklock import TaskLease as TaskLease
    from leasehold.faces.aio_tasklock import TaskLock as TaskLock
    from leasehold.faces.common import *  # noqa: F403

    __all__: list[str]
else:
    from leasehold.faces.common import homes
    from leasehold.lazy import from_modules

    __all__, __getattr__, __dir__ = from_modules(__name__, homes("aio"))
    del from_modules, homes
