"""The clocks of this machine: the boot clock, which runs on during suspend, and the wall clock."""

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from dibs.errors import NotConfigured

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The clock of a client, and of a store without its own."""

    def now(self) -> float:
        """Seconds on a clock that only runs forwards; comparable within this boot."""

    def stamp(self) -> int:
        """Microseconds since 1970, for tokens and for people; can be stepped at any time."""


def alarms_of(clock: Clock) -> Callable[[float, Callable[[], None]], Callable[[], None]] | None:
    """Return what calls back at a time of this clock, if it is moved by hand, as in tests; else None.

    The first argument is the time. The result cancels it.
    """
    return getattr(clock, "at", None)


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
    """Seconds that this process's boot clock is ahead of the machine's; 0 outside of a time namespace."""
    try:
        own = Path("/proc/self/ns/time").readlink()
        childrens = Path("/proc/self/ns/time_for_children").readlink()
        table = Path("/proc/self/timens_offsets").read_text()
    except OSError:
        return 0.0
    if own != childrens:
        return 0.0  # the table describes the namespace of our children, not ours
    for line in table.splitlines():
        name, seconds, nanoseconds = line.split()
        if name == "boottime":
            return int(seconds) + int(nanoseconds) / 1e9
    return 0.0


@cache
def boot_id() -> str:
    """An id that differs between boots, and between machines.

    Raises `NotConfigured` if the system has none: then a store that processes share could not distinguish
    a record of an earlier boot from a current one.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _boot_session()


def _boot_session() -> str:
    """The same, on macOS."""
    import subprocess

    try:
        done = subprocess.run(
            ["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotConfigured(
            "this system has no boot id, so processes cannot share a file safely: "
            "use memory:// or a server"
        ) from error
    return done.stdout.strip()
