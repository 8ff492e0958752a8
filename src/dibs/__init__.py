"""Only one at a time, everywhere: leases on shared resources, for asyncio.

`dibs.sync` has the same names, blocking.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from dibs.exports import *  # noqa: F403

    __all__: list[str]
    __version__: str
else:
    from dibs.exports import public_names
    from dibs.lazy import pass_through

    __all__, __getattr__, __dir__ = public_names(__name__, "dibs._api")
    pass_through("dibs.sync")
    del public_names, pass_through
