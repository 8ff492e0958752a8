"""What somebody who waits is shown: who holds it, since when, the own place, and how long it may take.

Or that the store is away. Nobody tells us that: whoever waits hears from it every second, so where
nothing comes it is asked.
"""

import os
import threading
import time
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dibs.cli.voice import Voice
from dibs.cli.wording import held_by, shown, span
from dibs.errors import BackendUnavailable, DibsError
from dibs.gate import Gate, start_thread

if TYPE_CHECKING:
    from dibs.sync import Waiting

_PLAIN = 30.0
"""Seconds between two lines where none can be redrawn, as in a log."""
_USUAL = 80
"""The columns of a terminal that doesn't tell how many it has."""
_SILENT = 2.0
"""After so many seconds without news the store is asked whether it is there."""
_FINISHES = 1.0
"""So long a line that is being written is waited for, in seconds: nobody may be reading."""


class Speaker:
    """A thread that tells how a wait goes, as often as whoever reads it can use.

    Whoever waits must not write itself: a terminal that is stopped, or a pipe that nobody reads, would
    keep it from the queue. Nor may an interrupt that comes while it tells us something keep it from
    leaving, so there is no event here (see `dibs.gate`).
    """

    def __init__(
        self, voice: Voice, ask: Callable[[], object] | None = None, *, is_away: bool = False
    ) -> None:
        """`ask` raises `BackendUnavailable` where the store is away; `is_away`: that was said just now."""
        self._voice = voice
        self._ask = ask
        self._pause = 0.0 if voice.is_live else _PLAIN
        self._is_away = is_away
        self._said_at = time.monotonic() if is_away else -inf
        self._latest: Waiting | None = None
        self._news: SimpleQueue[None] = SimpleQueue()
        self._over = Gate()
        self._speaking = threading.Lock()

    def tell(self, waiting: "Waiting") -> None:
        """So it goes: what `on_wait` calls."""
        self._latest = waiting
        self._news.put(None)

    def __enter__(self) -> Self:
        start_thread(self._speak, "dibs-waiting")
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
        if isinstance(error, BackendUnavailable) and self._latest is not None:
            _keep_holders(error, self._latest)

    def _speak(self) -> None:
        while not self._over.wait(0):
            if self._hears():
                self._say(None)
            elif (trouble := self._trouble()) is not None:
                self._say(trouble)

    def _hears(self) -> bool:
        """Whether there is news in time. However much has come in meanwhile, the latest is what counts."""
        try:
            self._news.get(timeout=None if self._ask is None else _SILENT)
        except Empty:
            return False
        while not self._news.empty():
            self._news.get()
        return True

    def _trouble(self) -> BackendUnavailable | None:
        """What keeps the store from answering."""
        assert self._ask is not None
        try:
            self._ask()
        except BackendUnavailable as error:
            return error
        except DibsError:
            pass  # whoever waits finds that out too, and ends by it
        except Exception:
            if not self._over.wait(0):  # else the client was closed while we asked
                raise
        return None

    def _say(self, trouble: BackendUnavailable | None) -> None:
        """How it goes: what is new at once, all else as often as can be used."""
        is_away, now = trouble is not None, time.monotonic()
        if is_away == self._is_away and now - self._said_at < self._pause:
            return
        self._is_away, self._said_at = is_away, now
        with self._speaking:
            if self._over.wait(0):
                return
            if trouble is not None:
                self._write("unavailable", f"trying on: {trouble}")
            elif self._latest is not None:
                self._tell(self._latest)

    def _tell(self, waiting: "Waiting") -> None:
        estimate = None if waiting.estimate is None else round(waiting.estimate, 1)
        self._write("waiting", _line(waiting), ahead=waiting.position, estimate=estimate)

    def _write(self, event: str, line: str, **fields: object) -> None:
        if self._voice.is_live:
            self._voice.redraw(_fitting(line))
        else:
            self._voice.say(event, line, **fields)


def _keep_holders(error: BackendUnavailable, seen: "Waiting") -> None:
    """Have the error that ends the wait say who was in the way when the store was last heard."""
    if error.busy or error.holders or not seen.holders:
        return
    error.holders, error.position = seen.holders, seen.position
    error.args = (f"{error}\n  {shown(seen.key)} was last seen {held_by(seen.holders)}",)


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
