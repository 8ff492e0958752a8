"""What somebody who waits is shown: who holds it, since when, the own place, and how long it may take."""

import os
import threading
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leasehold.cli.voice import Voice
from leasehold.cli.wording import held_by, shown, span
from leasehold.gate import Gate, start_thread

if TYPE_CHECKING:
    from leasehold.sync import Waiting

_PLAIN = 30.0
"""Seconds between two lines where none can be redrawn, as in a log."""
_USUAL = 80
"""The columns of a terminal that doesn't tell how many it has."""
_FINISHES = 1.0
"""So long a line that is being written is waited for, in seconds: nobody may be reading."""


class Speaker:
    """A thread that tells how a wait goes, as often as whoever reads it can use.

    Whoever waits must not write itself: a terminal that is stopped, or a pipe that nobody reads, would
    keep it from the queue. Nor may an interrupt that comes while it tells us something keep it from
    leaving, so there is no event here (see `leasehold.gate`).
    """

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._pause = 0.0 if voice.is_live else _PLAIN
        self._latest: Waiting | None = None
        self._news: SimpleQueue[None] = SimpleQueue()
        self._over = Gate()
        self._speaking = threading.Lock()

    def tell(self, waiting: "Waiting") -> None:
        """So it goes: what `on_wait` calls."""
        self._latest = waiting
        self._news.put(None)

    def __enter__(self) -> Self:
        start_thread(self._speak, "leasehold-waiting")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.open()
        self._news.put(None)
        if self._speaking.acquire(timeout=_FINISHES):
            if self._voice.is_live:
                self._voice.redraw("")
            self._speaking.release()

    def _speak(self) -> None:
        is_over = False
        while not is_over:
            self._await_news()
            with self._speaking:
                if self._latest is not None and not self._over.wait(0):
                    self._say(self._latest)
            is_over = self._over.wait(self._pause)

    def _await_news(self) -> None:
        """However many have come in meanwhile, the latest is what counts."""
        self._news.get()
        while not self._news.empty():
            self._news.get()

    def _say(self, waiting: "Waiting") -> None:
        line = _line(waiting)
        if self._voice.is_live:
            self._voice.redraw(_fitting(line))
        else:
            estimate = None if waiting.estimate is None else round(waiting.estimate, 1)
            self._voice.say("waiting", line, ahead=waiting.position, estimate=estimate)


def _line(waiting: "Waiting") -> str:
    so_far = f" ({span(waiting.waited)})" if waiting.waited >= 1 else ""
    left = "" if waiting.estimate is None else f"; about {span(waiting.estimate)} left"
    holders = held_by(waiting.holders)
    return f"waiting for {shown(waiting.key)}{so_far}: {holders}{_place(waiting)}{left}"


def _place(waiting: "Waiting") -> str:
    ahead = waiting.position
    if ahead is None:
        return f"; {waiting.waiting} wait" if waiting.waiting > 1 else ""
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
