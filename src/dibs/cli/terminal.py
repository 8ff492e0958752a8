"""The controlling terminal: lent to the command's group while that runs, and taken back."""

import os
import signal


class Terminal:
    """The terminal of this session; everything does nothing where there is none."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._file = -1
        self._lent = False

    def is_ours(self) -> bool:
        """Whether our own process group is the one in the foreground."""
        return self._foreground() == os.getpgrp()

    def wanted(self) -> bool:
        """Whether the command is to have the terminal before it asks for it.

        Only where it reads and writes it. With `run x -- job | less` the terminal is the pager's,
        and the job gets it when it first reaches for it (see `Supervisor`).
        """
        return self._lent or (os.isatty(0) and os.isatty(1))

    def lend(self, group: int) -> bool:
        """Put a group into the foreground, if that is ours to give."""
        if not self.is_ours():
            return False
        self._lent = True
        os.tcsetpgrp(self._file, group)
        return True

    def take_back(self, group: int) -> bool:
        """Put ourselves into the foreground again; whether the group was there."""
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
    """Stop our own process group as Ctrl-Z would, until it is continued; whether it did stop.

    The others of the group first (a pipeline's, or the script that runs us). Raising it in this
    very thread stops us before the call returns. The system ignores it in a group that no shell
    could continue.
    """
    continued: list[int] = []
    on_continue = signal.signal(signal.SIGCONT, lambda signum, frame: continued.append(signum))
    on_stop = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    os.killpg(0, signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, on_stop)
    signal.signal(signal.SIGCONT, on_continue)
    return bool(continued)
