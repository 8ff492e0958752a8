"""Guards that a resource puts before its writes, so that no stale holder's write gets in.

A holder that was paused past its lease doesn't know it, and may write after somebody else got the lease.
Its fencing token is lower than theirs: a resource that remembers the highest token it has seen, and
refuses lower ones, is safe from that. These guards do it for SQL, Redis and files. They take a lease, or
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
