"""Guards for a resource, which refuse writes of stale holders.

A holder that was paused past its lease doesn't know it, and may write after another holder got the lease.
Its fencing token is lower. A resource is safe if it remembers the highest token that it has seen, and
refuses lower ones. These guards do it for SQL, Redis and files. They take a lease, or
`(key, token)`, or `(key, token, slot)`. Equal tokens pass, as a holder writes many times; lower ones
raise `StaleToken`. The resource puts simultaneous writers in order.
"""

from dibs.fencing.file import FileFence
from dibs.fencing.redis import AsyncRedisFence, RedisFence
from dibs.fencing.sql import AsyncSqlFence, SqlFence
from dibs.fencing.stamp import StaleToken, Stamped

__all__ = [
    "AsyncRedisFence",
    "AsyncSqlFence",
    "FileFence",
    "RedisFence",
    "SqlFence",
    "StaleToken",
    "Stamped",
]
