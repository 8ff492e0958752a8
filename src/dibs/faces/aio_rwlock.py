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
        """Read no longer beside others, but write: once all other readers have left.

        It goes before everybody who waits to acquire, and nobody else gets in meanwhile. After `wait` seconds
        (None: as long as it takes; 0: one try) it raises `AcquireTimeout`, and the lease still reads.
        Where another reader waits to upgrade already, each would wait for the other to leave, so this
        raises `Deadlock` at once. Writing is a new grant: `token` is another. Raises `LeaseLost`, `NotHeld`,
        `BackendUnavailable`.
        """
        await self._upgrade(wait)

    async def downgrade(self) -> None:
        """Write no longer, but read, and let other readers in; nobody writes in between.

        While the store is away it is brought about in the background. The token stays. Raises
        `LeaseLost`, `NotHeld`.
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
    `Lock` is, and their leases can be upgraded and downgraded. Contention: readers and writers queue
    together, by priority, then arrival, so neither starve. Expiry and cancellation: as for a `Lock`.
    Options are those of a `Lock`, and count for both sides.
    """

    _read_type = Reading
    _write_type = Writing

    async def status(self) -> Status:
        """Who holds it, who waits for it; a writer has all units, a reader has one."""
        return await self._writing.status()

    async def locked(self) -> bool:
        """Somebody reads or writes at this moment; `read().locked()` asks for a writer."""
        return await self._writing.locked()

    async def revoke(self, *, reason: str, now: bool = False) -> int:
        """As `Lock.revoke`, for readers and writer."""
        return await self._writing.revoke(reason=reason, now=now)
