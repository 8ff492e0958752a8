"""The blocking face of the readers-writer lock."""

from dibs.config import Duration
from dibs.faces.blocking import Acquirable, Lease
from dibs.model import Status
from dibs.primitives.resizing import ResizableLease
from dibs.primitives.rwlock import ReadSideBase, RWLockBase, WriteSideBase
from dibs.runtime.step import step


class RWLease(ResizableLease, Lease):
    """A lease of a readers-writer lock, held by a thread."""

    __slots__ = ()

    def upgrade(self, *, wait: Duration | None = None) -> None:
        """Change from reading to writing, once all other readers have released.

        The upgrade goes before all waiters, and no new reader gets in. After `wait` seconds (None: no limit;
        0: one try) it raises `AcquireTimeout`, and the lease still reads. If another reader already waits to
        upgrade, it raises `Deadlock` at once. Writing is a new grant with a new `token`. Raises `LeaseLost`,
        `NotHeld`, `BackendUnavailable`.
        """
        step(self._upgrade(wait))

    def downgrade(self) -> None:
        """Change from writing to reading, and let other readers in; no writer gets in between.

        If the store is away, this happens in the background. The token stays. Raises `LeaseLost`, `NotHeld`.
        """
        step(self._downgrade())


class Reading(ReadSideBase[RWLease], Acquirable[RWLease]):
    """An `RWLock` for reading."""

    _lease_type = RWLease


class Writing(WriteSideBase[RWLease], Acquirable[RWLease]):
    """An `RWLock` for writing."""

    _lease_type = RWLease


class RWLock(RWLockBase[Reading, Writing]):
    """Many readers or one writer, across threads, processes and machines.

    `with lock.read() as lease` and `with lock.write() as lease`; the sides are acquired as a
    `Lock` is, and their leases can be upgraded and downgraded. Contention: readers and writers queue
    together, by priority, then arrival, so neither starve. Expiry and interrupts: as for a `Lock`.
    Options are those of a `Lock`, and count for both sides.
    """

    _read_type = Reading
    _write_type = Writing

    def status(self) -> Status:
        """Return the holders and waiters; a writer has all units, a reader has one."""
        return self._writing.status()

    def locked(self) -> bool:
        """Return whether it is read or written at this moment; `read().locked()` asks for a writer."""
        return self._writing.locked()

    def revoke(self, *, reason: str, now: bool = False) -> int:
        """Like `Lock.revoke`, for the readers and the writer."""
        return self._writing.revoke(reason=reason, now=now)
