"""The file that a URL names: its options, its identity, its permissions, and the disk it lies on."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISVTX
from urllib.parse import unquote_to_bytes

from dibs.clock import BootClock, Clock, boot_id
from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.url_options import flag, read_options, timeout

TIMEOUT = 10.0
"""Seconds for which a locked file is tried again, unless the URL says otherwise."""

MOUNTS = Path("/proc/self/mountinfo")

SHARED_BY_MACHINES = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip
"""Types of file systems that other machines can mount too."""

_OPTIONS = {"timeout": timeout, "unsafe_network_fs": flag}

type Identity = tuple[int, int, int]


class StoreFile:
    """A file, its clock, and what this process knows of it. All connections of one store share it.

    URLs are `sqlite:///relative.db`, `sqlite:////absolute.db` and `sqlite:///~/home.db`. Options:
    `timeout`, the seconds for which a locked file is tried again, and `unsafe_network_fs=1`. Raises
    `NotConfigured` for everything else. Making one touches no file.
    """

    def __init__(self, url: str, clock: Clock | None = None, boot: str | None = None) -> None:
        location, _, options = url.partition("?")
        self.path: str = _path(url, location)
        try:
            found = read_options(options, _OPTIONS)
        except ValueError as error:
            raise NotConfigured(f"{redacted(url)!r}: {error}") from None
        self.timeout: float = found.get("timeout", TIMEOUT)
        self.unsafe_network_fs: bool = found.get("unsafe_network_fs", False)
        if boot is None:
            boot = boot_id() if clock is None else "manual"
        self.boot = boot
        """The boot whose time `clock` tells. A clock that was passed in counts as a boot of its own."""
        self.clock: Clock = clock or BootClock()
        self.adopted: bool = False
        """The file was seen with our boot: another one in it means another running machine."""
        self.swept_to: bytes = b""
        """Idle keys up to this one were deleted."""

    def prepare(self) -> None:
        """Make the folder (0700) and the file (0600) if they are missing.

        Raises `NotConfigured` on a network file system, `Forbidden` or `BackendUnavailable` if the file
        cannot be made.
        """
        path = Path(self.path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.unsafe_network_fs:
                _refuse_network(self.path)
            if not path.exists():
                if path.is_symlink():
                    raise NotConfigured(
                        f"{path} is a symbolic link to {path.readlink()}, where no file is: make that "
                        "file, or remove the link"
                    )
                _make(self.path)
        except PermissionError as error:
            raise Forbidden(
                f"{path} can't be made: {error.strerror}; choose another place"
            ) from error
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise NotConfigured(f"{path} can't be made: {error.filename} is no folder") from error
        except OSError as error:
            if error.errno == errno.EROFS:
                raise Forbidden(f"{path} can't be made: {error.strerror}") from error
            raise BackendUnavailable(f"{path} can't be made: {error.strerror}") from error

    def identity(self) -> Identity | None:
        """Which files the path leads to now, the database and its shared memory; None if one is missing.

        SQLite removes the shared memory only with the last connection. If anybody else removes it while
        one is open, new processes would share nothing with the present ones.
        """
        try:
            file, shared = Path(self.path).stat(), Path(self.path + "-shm").stat()
        except OSError:
            return None
        return file.st_dev, file.st_ino, shared.st_ino

    def log_size(self) -> int:
        """The size of the write-ahead log on disk, in bytes."""
        try:
            return Path(self.path + "-wal").stat().st_size
        except OSError:
            return 0


def _path(url: str, location: str) -> str:
    prefix = "sqlite:///"
    if not location.startswith(prefix):
        raise NotConfigured(
            f"{redacted(url)!r} is no URL of a SQLite file: sqlite:///relative.db has three slashes, "
            "sqlite:////absolute/path.db has four"
        )
    path = os.fsdecode(unquote_to_bytes(location.removeprefix(prefix)))
    if not path or path == ":memory:":
        raise NotConfigured(
            f"{redacted(url)!r} names no file; for leases in this process use memory://"
        )
    if "\0" in path or path.endswith("/"):
        raise NotConfigured(f"{redacted(url)!r} names no file")
    at_home = path.startswith("~/")
    return str((Path(path).expanduser() if at_home else Path(path)).absolute())


def _make(path: str) -> None:
    """Make an empty file that nobody can have opened before it is closed here.

    By the rules of POSIX, closing a file drops all locks of this process on it, including those that
    SQLite has just taken in another thread. So it gets its name only afterwards.
    """
    unnamed = f"{path}.{os.urandom(6).hex()}"
    os.close(os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        with suppress(FileExistsError):
            os.link(unnamed, path)
    finally:
        Path(unnamed).unlink()


def open_to_others(path: str) -> str:
    """Why other users of this machine can use or replace a file; empty if they cannot, or it is missing."""
    try:
        file, folder = Path(path).stat().st_mode, Path(path).resolve().parent.stat().st_mode
    except OSError:
        return ""
    if file & 0o007:
        return f"{path} has mode {S_IMODE(file):04o}: every user of this machine can use it; chmod 600 it"
    if folder & 0o002 and not folder & S_ISVTX:
        return (
            f"the folder of {path} has mode {S_IMODE(folder):04o}: every user of this machine can put "
            "another file in its place; chmod 700 it"
        )
    return ""


def _refuse_network(path: str) -> None:
    kind = file_system_of(path)
    if kind in SHARED_BY_MACHINES:
        raise NotConfigured(
            f"{path} lies on a network file system ({kind}): SQLite shares memory between the "
            "processes of one machine, so two machines would each grant the same lease. Put the file "
            "on a local disk, or use a server; if this machine alone ever uses it, add "
            "?unsafe_network_fs=1 to the URL"
        )


def file_system_of(path: str) -> str:
    """The type of the file system that a path lies on; empty if the system does not tell."""
    try:
        table = MOUNTS.read_bytes()
    except OSError:
        return ""
    where = os.fsencode(os.path.realpath(path))
    best, kind = b"", b""
    for line in table.splitlines():
        mount, _, rest = line.partition(b" - ")
        # the kernel writes blanks and backslashes of paths in octal
        point = mount.split(b" ")[4].decode("unicode_escape").encode("latin-1")
        inside = where == point or where.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):  # of two on one point, the later covers the earlier
            best, kind = point, rest.split(b" ")[0]
    return kind.decode("ascii", "replace")


def free_space(path: str | Path) -> int:
    """Bytes that this user can still write to the disk of a file. (It takes 5 ms to import shutil.)"""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize
