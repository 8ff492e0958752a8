"""What all connections of one store have in common."""

from dataclasses import dataclass, field
from pathlib import Path

from dibs.clock import BootClock, Clock, boot_id
from dibs.stores.sqlite.url import Address

type Identity = tuple[int, int, int]


@dataclass(slots=True)
class Site:
    """A file, the clock by which its leases end, and what this process has seen of it."""

    path: str
    patience: float
    """How long a file that others keep locked is tried, in seconds."""
    unsafe_network_fs: bool
    clock: Clock
    boot: str
    """The boot that `clock` is of."""
    datagrams: bool = True
    settled: bool = False
    """Our boot has been seen in the file: another one can only be that of a living machine."""
    swept: bytes = field(default=b"")
    """Up to this key the file was swept of idle keys."""

    @classmethod
    def of(cls, url: str, clock: Clock | None, boot: str | None) -> "Site":
        """Where a URL leads. A clock that was given counts as a boot of its own, `manual`."""
        address = Address(url)
        if boot is None:
            boot = boot_id() if clock is None else "manual"
        clock = clock or BootClock()
        return cls(address.path, address.patience, address.unsafe_network_fs, clock, boot)

    def identity(self) -> Identity | None:
        """Which files the path leads to now, the database and its shared memory; None if there are none.

        SQLite removes the shared memory only with the last connection, so while one is open nobody
        may: whoever came then would share nothing with those who are there.
        """
        try:
            file, shared = Path(self.path).stat(), Path(self.path + "-shm").stat()
        except OSError:
            return None
        return file.st_dev, file.st_ino, shared.st_ino

    def log_size(self) -> int:
        """How many bytes the write-ahead log has on disk."""
        try:
            return Path(self.path + "-wal").stat().st_size
        except OSError:
            return 0
