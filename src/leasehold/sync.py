"""Only one at a time, everywhere: leases on shared resources, for threads.

`leasehold` has the same names, for asyncio.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.faces.blocking import Client as Client
    from leasehold.faces.blocking import Lease as Lease
    from leasehold.faces.blocking import Lock as Lock
    from leasehold.faces.blocking import Semaphore as Semaphore
    from leasehold.faces.blocking import connect as connect
    from leasehold.faces.common import *  # noqa: F403

    __all__: list[str]
else:
    from leasehold.faces.common import COMMON, WORLD
    from leasehold.lazy import from_modules

    _homes = {**COMMON, "leasehold.faces.blocking": WORLD}
    __all__, __getattr__, __dir__ = from_modules(__name__, _homes)
    del COMMON, WORLD, _homes, from_modules
