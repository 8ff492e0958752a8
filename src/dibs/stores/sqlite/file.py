"""The file before SQLite sees it: made for this user only, and on a disk of this machine."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISVTX

from dibs.errors import BackendUnavailable, Forbidden, NotConfigured

MOUNTS = Path("/proc/self/mountinfo")

SHARED_BY_MACHINES = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip
"""Types of file systems that other machines may have mounted too."""


def prepare(path: str, *, unsafe_network_fs: bool = False) -> None:
    """Make the folder (0700) and the file (0600) where they are missing.

    Raises `NotConfigured` on a network file system, `Forbidden` or `BackendUnavailable` where the
    file can't be made.
    """
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not unsafe_network_fs:
            _refuse_network(path)
        if not Path(path).exists():
            if Path(path).is_symlink():
                raise NotConfigured(
                    f"{path} is a symbolic link to {Path(path).readlink()}, where no file is: make that "
                    "file, or remove the link"
                )
            _make(path)
    except PermissionError as error:
        raise Forbidden(f"{path} can't be made: {error.strerror}; choose another place") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise NotConfigured(f"{path} can't be made: {error.filename} is no folder") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise Forbidden(f"{path} can't be made: {error.strerror}") from error
        raise BackendUnavailable(f"{path} can't be made: {error.strerror}") from error


def _make(path: str) -> None:
    """Make an empty file that nobody can have opened before it is closed here.

    Closing a file drops, by the rules of POSIX, all locks of this process on it, also those that
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
    """Why other users of this machine can use or replace a file; empty if they can't, or it is missing."""
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
    """The type of the file system that a path lies on; empty where the system doesn't tell."""
    try:
        table = MOUNTS.read_bytes()
    except OSError:
        return ""
    where = os.fsencode(os.path.realpath(path))
    best, kind = b"", b""
    for line in table.splitlines():
        mount, _, rest = line.partition(b" - ")
        point = _unescape(mount.split(b" ")[4])
        inside = where == point or where.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):  # of two on one point, the later covers the earlier
            best, kind = point, rest.split(b" ")[0]
    return kind.decode("ascii", "replace")


def _unescape(field: bytes) -> bytes:
    """The kernel writes blanks and backslashes of paths in octal."""
    return field.decode("unicode_escape").encode("latin-1")
