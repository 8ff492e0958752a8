"""The warden: a small process that ends the command when `dibs run` no longer can.

`dibs run` forks it before anything else happens, so they share no thread, lock or connection. The warden
leads the command's process group. So the group exists before the command does, and no other group gets its
number while either of them lives.

`dibs run` writes the lease's deadline into memory that both share. The warden ends the group, with TERM, a
grace period and KILL, in two cases:

* the deadline passes, because `dibs run` is stopped or starved;
* a pipe from `dibs run` closes, because it was killed.

`dibs run` ends the warden with KILL.
"""

import mmap
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_STATE, _GROUP = 0, 2
"""Where a process's state and group stand in its stat file, behind its name."""


def signal_group(group: int, *signums: int) -> None:
    """Send signals to every process of the group."""
    for signum in signums:
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):
            pass  # the group has ended, or its processes run as another user


def end_group(group: int) -> None:
    """Ask every process of the group to end, also those that are stopped."""
    signal_group(group, signal.SIGTERM, signal.SIGCONT)


def has_members(group: int) -> bool:
    """Whether any process but the leader is alive in the group. True if the system does not tell."""
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


POLITE = 10.0
"""Seconds from TERM to KILL where the lease itself leaves that much."""

_NAP = 1.0
"""The longest sleep: a timeout doesn't count while the machine is suspended, and the lease does."""
_GLANCE = 0.02
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds on the clock that runs on through suspend, the same here and in the warden."""
    return time.clock_gettime(_CLOCK)


def _shared_times() -> "memoryview[float]":
    """The times of TERM and KILL, in memory that this process shares with the next ones that it forks.

    In a pipe, old times would wait in front of the newest for a reader that was stopped. Each of the two is
    written and read as a whole.
    """
    times = memoryview(mmap.mmap(-1, 16)).cast("d")
    times[0] = times[1] = float("inf")
    return times


class Warden:
    """The warden as `dibs run` sees it: its group, the times, and a pipe that wakes it."""

    def __init__(self, pid: int, pipe: int, times: "memoryview[float]") -> None:
        self.group: int = pid
        self._pipe = pipe
        self._times = times

    @classmethod
    def start(cls) -> "Warden":
        """Fork it. Call this while the process has one thread only.

        From now on SIGCHLD is not ignored, or the kernel would keep no exit codes.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        times = _shared_times()
        reader, writer = (_above_standard(end) for end in os.pipe())
        os.set_blocking(writer, False)
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _serve(reader, times)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        os.close(reader)
        os.setpgid(pid, pid)  # the warden does the same: the first call makes the group
        return cls(pid, writer, times)

    def tell(self, term_at: float, kill_at: float) -> bool:
        """Set the times of TERM and KILL, and wake the warden. False if it is gone."""
        self._times[1], self._times[0] = kill_at, term_at
        try:
            os.write(self._pipe, b"\0")
        except BlockingIOError:
            pass  # it is stopped, and reads the times when it runs on
        except BrokenPipeError:
            return False
        return True

    def dismiss(self) -> None:
        """End the warden, and only it."""
        os.kill(self.group, signal.SIGKILL)
        with suppress(ChildProcessError):  # it is gone
            os.waitpid(self.group, 0)
        os.close(self._pipe)


def _above_standard(descriptor: int) -> int:
    """The same file under a number that no standard stream has, should one of those be closed."""
    if descriptor > 2:
        return descriptor
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


# ---- in the warden's process --------------------------------------------------------------------


def _serve(pipe: int, times: "memoryview[float]") -> NoReturn:
    try:
        _settle(pipe)
        _Watch(pipe, times).run()
    finally:
        os._exit(0)


def _settle(pipe: int) -> None:
    """Let go of everything that is not ours: terminal signals, streams, files, the directory."""
    for signum in signal.valid_signals() - {signal.SIGCHLD, signal.SIGCONT}:
        try:
            signal.signal(signum, signal.SIG_IGN)
        except (OSError, ValueError):
            pass  # KILL, STOP and what the system keeps for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for descriptor in [int(name) for name in os.listdir("/dev/fd")]:
        if descriptor > 2 and descriptor != pipe:
            _close(descriptor)
    os.chdir("/")
    try:
        Path("/proc/self/comm").write_bytes(b"dibswarden")
    except OSError:
        pass  # a nicety of Linux


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # it was the listing's own


class _Watch:
    def __init__(self, pipe: int, times: "memoryview[float]") -> None:
        self._pipe = pipe
        self._times = times
        self._term_at = self._kill_at = float("inf")
        self._ending = False

    def run(self) -> None:
        while self._is_connected():
            at = now()  # before the times are read: this process may be stopped at any point
            self._read_times()
            if at >= self._kill_at:
                signal_group(os.getpid(), signal.SIGKILL)
            if at >= self._term_at:
                self._end()
        self._read_times()
        self._orphaned()

    def _is_connected(self) -> bool:
        """Sleep until the next time, or until woken. False once `dibs run` is gone."""
        pause = min(_NAP, max(0.0, min(self._term_at, self._kill_at) - now()))
        if not select.select([self._pipe], [], [], pause)[0]:
            return True
        return bool(os.read(self._pipe, 4096))

    def _read_times(self) -> None:
        """A lost lease stays lost: after TERM, newer times do not count."""
        if not self._ending:
            self._term_at, self._kill_at = self._times

    def _end(self) -> None:
        """Send TERM, once."""
        if not self._ending:
            self._ending = True
            self._term_at = float("inf")
            end_group(os.getpid())

    def _orphaned(self) -> None:
        if self._term_at == self._kill_at == float("inf"):
            return  # nothing was ever started
        if self._term_at < float("inf"):
            self._end()
        self._kill_at = min(self._kill_at, now() + POLITE)
        while now() < self._kill_at and has_members(os.getpid()):
            time.sleep(_GLANCE)
        signal_group(os.getpid(), signal.SIGKILL)
