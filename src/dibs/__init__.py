"""Only one at a time, everywhere: leases on shared resources, for asyncio.

`dibs.sync` has the same names, blocking.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.faces.aio import Lease as Lease
    from dibs.faces.aio import Lock as Lock
    from dibs.faces.aio import Semaphore as Semaphore
    from dibs.faces.aio_allof import AllOf as AllOf
    from dibs.faces.aio_allof import Leases as Leases
    from dibs.faces.aio_client import Client as Client
    from dibs.faces.aio_client import connect as connect
    from dibs.faces.aio_election import Campaign as Campaign
    from dibs.faces.aio_election import LeaderElection as LeaderElection
    from dibs.faces.aio_election import Term as Term
    from dibs.faces.aio_rwlock import RWLease as RWLease
    from dibs.faces.aio_rwlock import RWLock as RWLock
    from dibs.faces.aio_tasklock import TaskLease as TaskLease
    from dibs.faces.aio_tasklock import TaskLock as TaskLock
    from dibs.faces.common import *  # noqa: F403

    __all__: list[str]
else:
    from dibs.faces.common import homes
    from dibs.lazy import from_modules

    __all__, __getattr__, __dir__ = from_modules(__name__, homes("aio"))
    del from_modules, homes
