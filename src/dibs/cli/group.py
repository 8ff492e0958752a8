"""The process group in which a command and all that it starts live."""

import os
import signal
from pathlib import Path

_STATE, _GROUP = 0, 2
"""Where a process's state and group stand in its stat file, behind its name."""


def tell(group: int, *signums: int) -> None:
    """Send signals to every process of the group."""
    for signum in signums:
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left, or what is left runs as another user


def end(group: int) -> None:
    """Ask every process of the group to end, also those that are stopped."""
    tell(group, signal.SIGTERM, signal.SIGCONT)


def has_members(group: int) -> bool:
    """Whether anybody but the group's leader is alive in it. True where the system doesn't tell."""
    processes = Path("/proc")
    if not (processes / "self/stat").exists():
        return True
    return any(
        _belongs(process, group)
        for process in processes.iterdir()
        if process.name.isdigit() and process.name != str(group)
    )


def _belongs(process: Path, group: int) -> bool:
    try:
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False  # it ended while we looked
    return fields[_GROUP] == b"%d" % group and fields[_STATE] not in (b"Z", b"X")
