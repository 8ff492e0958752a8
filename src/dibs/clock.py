"""The clocks of this machine: one that runs on through suspend, and the wall's, for stamps only."""

import time
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from dibs.errors import NotConfigured

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What tells the time to a client or to a store that has no clock of its own."""

    def now(self) -> float:
        """Seconds on a clock that only runs forwards and is comparable within this boot."""

    def stamp(self) -> int:
        """Microseconds since 1970, for tokens and for people; may be stepped at any time."""


class SystemClock:
    """This process's boot clock. In a time namespace it is off by a constant: see `BootClock`."""

    __slots__ = ()

    now = staticmethod(partial(time.clock_gettime, _BOOT_CLOCK))

    def stamp(self) -> int:
        return time.time_ns() // 1000


class BootClock:
    """The boot clock of the machine itself, the same in all of its time namespaces."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = namespace_offset()

    def now(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK) - self._offset

    def stamp(self) -> int:
        return time.time_ns() // 1000


def namespace_offset() -> float:
    """By how much this process's boot clock is ahead of the machine's: 0 outside a time namespace."""
    try:
        own = Path("/proc/self/ns/time").readlink()
        childrens = Path("/proc/self/ns/time_for_children").readlink()
        table = Path("/proc/self/timens_offsets").read_text()
    except OSError:
        return 0.0
    if own != childrens:
        return 0.0  # the table is of the namespace that children will enter, and we are not in it
    for line in table.splitlines():
        name, seconds, nanoseconds = line.split()
        if name == "boottime":
            return int(seconds) + int(nanoseconds) / 1e9
    return 0.0


@cache
def boot_id() -> str:
    """What tells this boot of this machine from every other.

    Raises `NotConfigured` where the system has no such thing: a store that many processes share
    could then not tell a record of an earlier boot from a living one.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _boot_session()


def _boot_session() -> str:
    """macOS keeps it elsewhere."""
    import subprocess

    try:
        done = subprocess.run(
            ["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotConfigured(
            "this system tells no boot id, so a file can't be shared safely between processes: "
            "use memory:// or a server"
        ) from error
    return done.stdout.strip()
