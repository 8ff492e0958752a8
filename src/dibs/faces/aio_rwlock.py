"""The asyncio face of the readers-writer lock."""

from dibs.config import Duration
from dibs.faces.aio import Acquirable, Lease
from dibs.model import Status
from dibs.primitives.resizing import ResizableLease
from dibs.primitives.rwlock import ReadSideBase, RWLockBase, WriteSideBase


class RWLease(ResizableLease, Lease):
    """A lease of a readers-writer lock, held by an asyncio task."""

    __slots__ = ()

    async def upgrade(self, *, wait: Duration | None = None) -> None:
        """Change from reading to writing, once all other readers have released.

        The upgrade goes before all waiters, and no new reader gets in. After `wait` seconds (None: no limit;
        0: one try) it raises `AcquireTimeout`, and the lease still reads. If another reader already waits to
        upgrade, it raises `Deadlock` at once. Writing is a new grant with a new `token`. Raises `LeaseLost`,
        `NotHeld`, `BackendUnavailable`.
        """
        await self._upgrade(wait)

    async def downgrade(self) -> None:
        """Change from writing to reading, and let other readers in; no writer gets in between.

        If the store is away, this happens in the background. The token stays. Raises `LeaseLost`, `NotHeld`.
        """
        await self._downgrade()


class Reading(ReadSideBase[RWLease], Acquirable[RWLease]):
    """An `RWLock` for reading."""

    _lease_type = RWLease


class Writing(WriteSideBase[RWLease], Acquirable[RWLease]):
    """An `RWLock` for writing."""

    _lease_type = RWLease


class RWLock(RWLockBase[Reading, Writing]):
    """Many readers or one writer, across tasks, processes and machines, for asyncio.

    `async with lock.read() as lease` and `async with lock.write() as lease`; the sides are acquired as a
    `Lock` is, and their leases can be upgraded and downgraded. Contention: readers and writers share a queue,
    by priority, then arrival, so neither side starves. Expiry and cancellation: as for a `Lock`.
    The options are those of a `Lock`, and apply to both sides.
    """

    _read_type = Reading
    _write_type = Writing

    async def status(self) -> Status:
        """Return the holders and waiters; a writer has all units, a reader has one."""
        return await self._writing.status()

    async def locked(self) -> bool:
        """Return whether it is read or written at this moment; `read().locked()` asks for a writer."""
        return await self._writing.locked()

    async def revoke(self, *, reason: str, now: bool = False) -> int:
        """Like `Lock.revoke`, for the readers and the writer."""
        return await self._writing.revoke(reason=reason, now=now)
