"""Keeps a command within its lease: from its start to its exit, or to the loss that ends it."""

import errno
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dibs.cli.exits import NOT_EXECUTABLE, NOT_FOUND, SIGNALLED
from dibs.cli.output import Messages
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.warden import POLITE, Warden, end_group, has_members, now, signal_group

_RESTORED = [signal.SIGPIPE, signal.SIGTTOU]
"""Python or we ignore these, and an ignored signal would stay so in the command."""
if hasattr(signal, "SIGXFSZ"):
    _RESTORED.append(signal.SIGXFSZ)


class NotStarted(Exception):
    """The command cannot be run. `code` is the exit code that a shell would give."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = error.errno == errno.ENOENT
        why = f"{command}: {os.strerror(error.errno or 0)}"
        hint = "; for a line of shell write -- sh -c '…'" if " " in command.strip() else ""
        super().__init__(f"command not found: {command}{hint}" if missing else why)
        self.code = NOT_FOUND if missing else NOT_EXECUTABLE


@dataclass
class ChildExited:
    """The command ended, with the code that a shell would give, or by a signal."""

    code: int
    signum: int = 0


@dataclass
class ChildStopped:
    """The command was stopped by a signal."""

    signum: int


class RunningCommand:
    """A running command."""

    def __init__(self, command: list[str], pid: int) -> None:
        self.command: list[str] = command
        self.exited: ChildExited | None = None
        self._pid = pid

    @classmethod
    def start(
        cls, command: list[str], environment: Mapping[str, str], group: int
    ) -> "RunningCommand":
        """Run the command in a process group that exists. Raises `NotStarted`."""
        try:
            pid = os.posix_spawnp(
                command[0], command, environment, setpgroup=group, setsigdef=_RESTORED
            )
        except OSError as error:
            raise NotStarted(command[0], error) from None
        return cls(command, pid)

    def change(self) -> ChildExited | ChildStopped | None:
        """Return how it ended or stopped since the last call. Never waits."""
        if self.exited:
            return None
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:  # it is gone, and its code with it
            self.exited = ChildExited(255)
            return self.exited
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            return ChildStopped(os.WSTOPSIG(status))
        code = os.waitstatus_to_exitcode(status)
        self.exited = ChildExited(code) if code >= 0 else ChildExited(SIGNALLED - code, -code)
        return self.exited


class Terminal:
    """The controlling terminal, lent to the command's group while that runs.

    Without a terminal all this does nothing.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._file = -1
        self._lent = False

    def is_ours(self) -> bool:
        """Whether our own process group is in the foreground."""
        return self._foreground() == os.getpgrp()

    def wanted(self) -> bool:
        """Whether the command gets the terminal before it uses it.

        Only if it reads and writes it. With `run x -- job | less` the terminal is the pager's, and the job
        gets it when it first reads from it (see `Supervisor`).
        """
        return self._lent or (os.isatty(0) and os.isatty(1))

    def lend(self, group: int) -> bool:
        """Put a group into the foreground, if our own group is there. Returns whether it did."""
        if not self.is_ours():
            return False
        self._lent = True
        os.tcsetpgrp(self._file, group)
        return True

    def take_back(self, group: int) -> bool:
        """Put our own group into the foreground again. Returns whether the other was there."""
        had = self._lent and self._foreground() == group
        if had:
            os.tcsetpgrp(self._file, os.getpgrp())
        return had

    def _foreground(self) -> int:
        if self._file < 0:
            return -1
        try:
            return os.tcgetpgrp(self._file)
        except OSError:
            return -1  # it was hung up


def suspend() -> bool:
    """Stop our own process group as Ctrl-Z would, until it is continued. Returns whether it did stop.

    The other processes of the group stop first (those of a pipeline, or the script that runs us). A signal
    raised in this thread stops us before the call returns. The system ignores it in a group that no shell
    could continue.

    The system may deliver SIGCONT to another thread, which can be slower than this one. So this one waits for
    it, and leaves a handler in place.
    """
    continued: list[int] = []
    on_continue = signal.signal(signal.SIGCONT, lambda signum, frame: continued.append(signum))
    on_stop = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    os.killpg(0, signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, on_stop)
    until = now() + _DELIVERY
    while not continued and now() < until:
        time.sleep(_GLANCE)
    if on_continue != signal.SIG_DFL:
        signal.signal(signal.SIGCONT, on_continue)
    return bool(continued)


_GLANCE = 0.02
_DELIVERY = 0.5
"""Seconds within which a signal has reached its handler, whichever thread gets it."""
_NEVER = float("inf")


class SupervisedLease(Protocol):
    """The part of a lease that `Supervisor` uses."""

    @property
    def ttl(self) -> float: ...
    @property
    def remaining(self) -> float: ...
    @property
    def lost(self) -> bool: ...
    @property
    def trouble(self) -> str | None: ...


def grace(ttl: float) -> float:
    """Seconds from the lease's deadline to KILL: most of the margin that the store adds to it.

    The margin is 10 % of the ttl and at least 50 ms, and 1 % for the drift of clocks.
    """
    return 0.7 * max(0.1 * ttl, 0.05)


class Supervisor:
    """Runs a command under a lease, and ends it before the lease ends."""

    def __init__(
        self,
        lease: SupervisedLease,
        warden: Warden,
        signals: Signals,
        tty: Terminal,
        messages: Messages,
    ) -> None:
        self._lease = lease
        self._warden = warden
        self._signals = signals
        self._tty = tty
        self._messages = messages
        self._grace = grace(lease.ttl)
        self._deadline = now()
        self._child: RunningCommand | None = None
        self._guarded = True
        self._in_trouble = False
        self._had_terminal = False

    @property
    def code(self) -> int | None:
        """The command's exit code; None until it has ended."""
        exited = self._child.exited if self._child else None
        return exited.code if exited else None

    @property
    def interrupt(self) -> Interrupted | None:
        """SIGINT, if that ended the command: then it has to end us, too.

        Ctrl-C reaches the foreground only: where that was the command's group, ours has yet to get it.
        """
        exited = self._child.exited if self._child else None
        is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        if is_ignored or exited is None or exited.signum != signal.SIGINT:
            return None
        everyone = self._had_terminal and signal.SIGINT not in self._signals.seen
        return Interrupted(signal.SIGINT, everyone=everyone)

    def run(self, command: list[str], environment: Mapping[str, str]) -> bool:
        """Start the command and return when it has ended: whether that was within its lease.

        Raises `NotStarted`. However this is left, nothing of the command runs without the lease.
        """
        self._report()
        if self._tty.wanted():
            self._tty.lend(self._warden.group)
        try:
            self._child = RunningCommand.start(command, environment, self._warden.group)
            self._signals.forward_to(self._warden.group)
            return self._watch(self._child)
        except BaseException:
            self._end()
            raise
        finally:
            self._had_terminal = self._tty.take_back(self._warden.group)

    def _watch(self, child: RunningCommand) -> bool:
        while True:
            match child.change():
                case ChildExited():
                    return not self._lease.lost
                case ChildStopped(signum):
                    self._stopped(signum)
                case None:
                    pass
            if self._lease.lost:
                self._end()
                return False
            self._report()
            self._tell_trouble()
            self._signals.pause(min(self._lease.ttl / 6, self._deadline - now()))

    def _report(self) -> None:
        """Send the lease's deadline to the warden.

        The warden acts a little later than this process, so that the command usually gets one TERM.
        """
        remaining = self._lease.remaining
        if remaining > 0:
            self._deadline = now() + remaining
        listening = self._warden.tell(
            self._deadline + self._grace / 4, self._deadline + self._grace
        )
        if self._guarded and not listening:
            self._guarded = False
            self._messages.show(
                "unguarded",
                "the warden process was killed: if `dibs run` is killed too, the command runs on",
            )

    def _tell_trouble(self) -> None:
        """Report once that renewals fail, and once that they succeed again."""
        trouble, was = self._lease.trouble, self._in_trouble
        self._in_trouble = trouble is not None
        if trouble is not None and not was:
            left = max(0.0, self._lease.remaining)
            self._messages.show(
                "unavailable",
                f"cannot renew, still trying; the lease ends in {left:.0f} s: {trouble}",
            )
        elif was and trouble is None:
            self._messages.show("renewed", "renewed again")

    def _stopped(self, signum: int) -> None:
        """Stop with the command, as the shell's job; go on with it if the lease still stands."""
        wants_terminal = signum in (signal.SIGTTIN, signal.SIGTTOU)
        if signum == signal.SIGSTOP:
            return  # another process stopped it on purpose: keep the lease
        if not (wants_terminal and self._tty.lend(self._warden.group)):
            self._tty.take_back(self._warden.group)
            left = max(0.0, self._lease.remaining)
            self._messages.show(
                "stopped", f"stopped; the lease ends in {left:.0f} s unless you continue it"
            )
            suspended = suspend()
            if self._lease.lost or (wants_terminal and not suspended):
                return
            if self._tty.wanted():
                self._tty.lend(self._warden.group)
        signal_group(self._warden.group, signal.SIGCONT)

    def _end(self) -> None:
        """End the whole group before the store grants the lease to others: TERM, a grace period, KILL."""
        if self._child is None:
            return
        kill_at = min(self._deadline + self._grace, now() + max(self._grace, POLITE))
        self._warden.tell(_NEVER, kill_at)
        end_group(self._warden.group)
        while now() < kill_at:
            self._child.change()
            if self._child.exited and not has_members(self._warden.group):
                return
            self._signals.pause(min(_GLANCE, kill_at - now()))
        signal_group(self._warden.group, signal.SIGKILL)
        while not self._child.exited:
            self._child.change()
            self._signals.pause(_GLANCE)
