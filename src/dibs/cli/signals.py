"""Signals to `dibs run`: they end a wait, and reach the command once it runs."""

import os
import select
import signal
from types import FrameType

from dibs.cli.exits import SIGNALLED, leave_within
from dibs.cli.warden import signal_group

LEAVES = 8.0
"""Seconds that leaving the queue can take. Each step has a shorter limit of its own."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(KeyboardInterrupt):
    """A signal came while we waited, or SIGINT ended the command: exit.

    `everyone`: the rest of our process group, such as the script that runs us, has yet to get it.
    """

    def __init__(self, signum: int, *, everyone: bool = False) -> None:
        super().__init__(signum)
        self.signum: int = signum
        self.everyone: bool = everyone


class Signals:
    """The handlers of one run, and a pipe that wakes its loop.

    A signal that was ignored when we were started (`nohup`, or `&` in a script) stays ignored, for
    us and for the command.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._group: int | None = None
        self._waiting = True
        self._kept: list[int] = []
        self.seen: set[int] = set()

    def install(self) -> None:
        """Take over the signals. Only the main thread can."""
        for signum in _ENDING:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._on_signal)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or we couldn't take the terminal back

    def check(self) -> None:
        """Raise a signal again that came during the wait.

        The interpreter drops an exception that a handler raises within a finalizer or an import callback.
        """
        if self._kept:
            raise Interrupted(self._kept[0])

    def hold(self) -> int | None:
        """Keep signals for the command from now on. Returns one that has come already."""
        self._waiting = False
        return self._kept[0] if self._kept else None

    def forward_to(self, target: int) -> None:
        """Pass signals on to a group from now on, beginning with those that were kept."""
        if signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._on_signal)
        signal.signal(signal.SIGCHLD, _nothing)  # a handler of any kind makes it wake us
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._group = target
        signal_group(target, *self._kept)

    def end(self) -> None:
        """The command has ended: from now on a signal interrupts this process again."""
        if signal.getsignal(signal.SIGTSTP) == self._on_signal:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._group = None
        self._waiting = True

    def wake(self) -> None:
        """Let `pause` return. Any thread may call it."""
        try:
            os.write(self._writer, b"\0")
        except BlockingIOError:
            pass  # it is full of calls to wake up

    def pause(self, timeout: float) -> None:
        """Sleep until something happens: a signal, a child's change, `wake`, or the timeout."""
        if select.select([self._reader], [], [], max(0.0, timeout))[0]:
            os.read(self._reader, 4096)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.seen.add(signum)
        if self._group is not None:
            signal_group(self._group, signum)
            return
        self._kept.append(signum)
        if self._waiting:
            self._waiting = False  # a second one must not break the leaving
            leave_within(LEAVES, SIGNALLED + signum)
            raise Interrupted(signum)


def _nothing(signum: int, frame: FrameType | None) -> None:
    pass
