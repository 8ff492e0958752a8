"""The command itself: started without a shell, and watched."""

import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from dibs.cli.exits import NOT_EXECUTABLE, NOT_FOUND, SIGNALLED

_RESTORED = [signal.SIGPIPE, signal.SIGTTOU]
"""Python or we ignore these, and an ignored signal would stay so in the command."""
if hasattr(signal, "SIGXFSZ"):
    _RESTORED.append(signal.SIGXFSZ)


class NotStarted(Exception):
    """The command can't be run; `code` is what a shell would exit with."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = error.errno == errno.ENOENT
        why = f"{command}: {os.strerror(error.errno or 0)}"
        hint = "; for a line of shell write -- sh -c '…'" if " " in command.strip() else ""
        super().__init__(f"command not found: {command}{hint}" if missing else why)
        self.code = NOT_FOUND if missing else NOT_EXECUTABLE


@dataclass
class Exited:
    """It ended, with the code that a shell would give, or by a signal."""

    code: int
    signum: int = 0


@dataclass
class Stopped:
    """It is stopped, by this signal."""

    signum: int


class Child:
    """One running command."""

    def __init__(self, command: list[str], pid: int) -> None:
        self.command = command
        self.exited: Exited | None = None
        self._pid = pid

    @classmethod
    def start(cls, command: list[str], environment: Mapping[str, str], group: int) -> "Child":
        """Run the command in a process group that exists. Raises `NotStarted`."""
        try:
            pid = os.posix_spawnp(
                command[0], command, environment, setpgroup=group, setsigdef=_RESTORED
            )
        except OSError as error:
            raise NotStarted(command[0], error) from None
        return cls(command, pid)

    def change(self) -> Exited | Stopped | None:
        """What has become of it since the last call; never waits."""
        if self.exited:
            return None
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            return Stopped(os.WSTOPSIG(status))
        code = os.waitstatus_to_exitcode(status)
        self.exited = Exited(code) if code >= 0 else Exited(SIGNALLED - code, -code)
        return self.exited
