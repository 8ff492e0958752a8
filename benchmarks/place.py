"""Where one contestant keeps its things: a folder of its own on a real disk."""

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import url_in

NOT_DISKS = {"tmpfs", "ramfs", "overlay", "nfs", "nfs4", "9p"}


@dataclass(frozen=True)
class Place:
    """A folder, and names in it that no other process of the contestant uses."""

    folder: Path
    process: int = 0

    @property
    def sqlite_url(self) -> str:
        return f"sqlite:///{self.folder / 'leases.db'}"

    @property
    def server_url(self) -> str:
        """The server that `Servers.place` has named for this contestant."""
        return url_in(self.folder)

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def key(self, number: int) -> str:
        return f"key-{self.process}-{number}"


def file_system(folder: Path) -> str:
    """The kind of file system that a folder is on, as far as this system tells."""
    try:
        table = Path("/proc/mounts").read_text()
    except OSError:
        return "unknown"
    kind, length = "unknown", -1
    for line in table.splitlines():
        _, mount, fs, *_ = line.split()
        inside = os.path.commonpath([mount, folder]) == mount
        if inside and len(mount) >= length:
            kind, length = fs, len(mount)
    return kind


def disk_folder() -> Path:
    """A temporary folder's parent that is on a disk, if there is one."""
    candidates = [Path(os.environ.get("TMPDIR", "/tmp")), Path("/var/tmp"), Path.home()]
    for folder in candidates:
        if folder.is_dir() and file_system(folder.resolve()) not in NOT_DISKS:
            return folder
    return candidates[0]
