"""What somebody who waits sees: who holds it, since when, and the own place in the queue."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from leasehold.cli.voice import Voice
from leasehold.cli.warden import now
from leasehold.cli.wording import holders, shown, span
from leasehold.errors import LeaseholdError
from leasehold.model import Status

_LIVE = 1.0
"""Seconds between two looks where a terminal redraws the line."""
_PLAIN = 30.0
"""Seconds between two lines elsewhere, as for a log."""
_USUAL = 80
"""The columns of a terminal that doesn't tell how many it has."""


class Waiting:
    """A thread that looks at the key now and then and tells; waiting is another's business."""

    def __init__(self, look: Callable[[], Status], voice: Voice) -> None:
        self._look = look
        self._voice = voice
        self._since = now()
        self._over = threading.Event()
        self._speaking = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="leasehold-waiting", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()  # a look that hangs is left behind
        with self._speaking:
            if self._voice.is_live:
                self._voice.redraw("")

    def _watch(self) -> None:
        pause = _LIVE if self._voice.is_live else _PLAIN
        while True:
            self._tell()
            if self._over.wait(pause):
                return

    def _tell(self) -> None:
        try:
            status = self._look()
        except LeaseholdError:
            return  # the one who waits tries on, and tells if it gives up
        with self._speaking:
            if self._over.is_set():
                return
            if self._voice.is_live:
                self._voice.redraw(_fitting(self._line(status)))
            else:
                place = own_place(status)
                self._voice.say("waiting", self._line(status), ahead=place)

    def _line(self, status: Status) -> str:
        waited = now() - self._since
        so_far = f" ({span(waited)})" if waited >= 1 else ""
        return f"waiting for {shown(status.key)}{so_far}: {holders(status)}{_place(status)}"


def own_place(status: Status) -> int | None:
    """How many wait ahead of this process, where the store names us among the first."""
    me = f"{os.uname().nodename}/{os.getpid()}"
    for ahead, waiter in enumerate(status.waiters):
        if waiter.owner == me or waiter.owner.startswith(f"{me}/"):
            return ahead
    return None


def _place(status: Status) -> str:
    ahead = own_place(status)
    if ahead is None:
        return f"; {status.waiting} wait" if status.waiting > 1 else ""
    if ahead == 0:
        return "; you are next"
    return f"; {ahead} {'is' if ahead == 1 else 'are'} ahead of you"


def _fitting(line: str) -> str:
    """As much of it as the terminal has room for, or redrawing would leave pieces behind."""
    try:
        columns = os.get_terminal_size(2).columns or _USUAL
    except OSError:
        columns = _USUAL
    return line if len(line) < columns else line[: max(0, columns - 2)] + "…"
