"""Progress of a wait: who holds the lease, since when, the position in the queue, an estimate.

It also reports a store that is away. A waiter gets news from its store every second, so after a
silence this asks the store.
"""

import os
import threading
import time
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dibs.cli.output import Messages, fitting, shown, span
from dibs.cli.statuses import held_by
from dibs.errors import BackendUnavailable, DibsError
from dibs.process import Gate, start_thread

if TYPE_CHECKING:
    from dibs.sync import Waiting

_PLAIN = 30.0
"""Seconds between two lines in a log."""
_USUAL = 80
"""Columns of a terminal of unknown width."""
_SILENT = 2.0
"""Seconds without news after which the store is asked whether it answers."""
_FINISHES = 1.0
"""Seconds to let a line finish: stderr may be blocked."""


class WaitProgress:
    """A thread that prints how a wait goes.

    The waiting thread does not write itself: a stopped terminal or a full pipe would keep it from its
    queue. It uses no `Event`, so that an interrupt cannot keep it from leaving (see `dibs.process`).
    """

    def __init__(
        self,
        messages: Messages,
        ask: Callable[[], object] | None = None,
        *,
        check: Callable[[], None] = lambda: None,
        is_away: bool = False,
    ) -> None:
        """`ask` raises `BackendUnavailable` if the store is away; `is_away`: that was just printed.

        `check` raises what ends the wait, such as a signal.
        """
        self._check = check
        self._messages = messages
        self._ask = ask
        self._pause = 0.0 if messages.is_live else _PLAIN
        self._is_away = is_away
        self._reported_at = time.monotonic() if is_away else -inf
        self._latest: Waiting | None = None
        self._news: SimpleQueue[None] = SimpleQueue()
        self._over = Gate()
        self._writing = threading.Lock()

    def tell(self, waiting: "Waiting") -> None:
        """Take the newest state; for `on_wait`."""
        self._check()
        self._latest = waiting
        self._news.put(None)

    def __enter__(self) -> Self:
        start_thread(self._run, "dibs-waiting")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.open()
        self._news.put(None)
        if self._writing.acquire(timeout=_FINISHES):
            if self._messages.is_live:
                self._messages.redraw("")
            self._writing.release()
        if isinstance(error, BackendUnavailable) and self._latest is not None:
            _keep_holders(error, self._latest)

    def _run(self) -> None:
        while not self._over.wait(0):
            if self._has_news():
                self._report(None)
            elif (trouble := self._trouble()) is not None:
                self._report(trouble)

    def _has_news(self) -> bool:
        """Whether there is news in time. Older news is dropped."""
        try:
            self._news.get(timeout=None if self._ask is None else _SILENT)
        except Empty:
            return False
        while not self._news.empty():
            self._news.get()
        return True

    def _trouble(self) -> BackendUnavailable | None:
        """The error of a store that does not answer."""
        assert self._ask is not None
        try:
            self._ask()
        except BackendUnavailable as error:
            return error
        except DibsError:
            pass  # the wait ends with the same error
        except Exception:
            if not self._over.wait(0):  # else the client was closed meanwhile
                raise
        return None

    def _report(self, trouble: BackendUnavailable | None) -> None:
        """Print a change of availability at once, all else at most once per pause."""
        is_away, now = trouble is not None, time.monotonic()
        if is_away == self._is_away and now - self._reported_at < self._pause:
            return
        self._is_away, self._reported_at = is_away, now
        with self._writing:
            if self._over.wait(0):
                return
            if trouble is not None:
                self._write("unavailable", f"still trying: {trouble}")
            elif self._latest is not None:
                self._show(self._latest)

    def _show(self, waiting: "Waiting") -> None:
        estimate = None if waiting.estimate is None else round(waiting.estimate, 1)
        self._write("waiting", _line(waiting), ahead=waiting.position, estimate=estimate)

    def _write(self, event: str, line: str, **fields: object) -> None:
        if self._messages.is_live:
            self._messages.redraw(_fitting(line))
        else:
            self._messages.show(event, line, **fields)


def _keep_holders(error: BackendUnavailable, seen: "Waiting") -> None:
    """Add the last known holders to the error that ends the wait."""
    if error.busy or error.holders or not seen.holders:
        return
    error.holders, error.position = seen.holders, seen.position
    error.args = (f"{error}\n  {shown(seen.key)} was last {held_by(seen.holders)}",)


def _line(waiting: "Waiting") -> str:
    so_far = f" ({span(waiting.waited)})" if waiting.waited >= 1 else ""
    left = "" if waiting.estimate is None else f"; about {span(waiting.estimate)} left"
    if waiting.is_moving:
        return f"waiting for {waiting}{so_far}"
    holders = held_by(waiting.holders)
    return f"waiting for {shown(waiting.key)}{so_far}: {holders}{_place(waiting)}{left}"


def _place(waiting: "Waiting") -> str:
    ahead = waiting.position
    if ahead is None:
        return f"; {waiting.waiting} waiting" if waiting.waiting > 1 else ""
    if ahead == 0:
        return "; you are next"
    return f"; {ahead} ahead of you"


def _fitting(line: str) -> str:
    """The line, cut to the width of the terminal at stderr."""
    try:
        columns = os.get_terminal_size(2).columns or _USUAL
    except OSError:
        columns = _USUAL
    return fitting(line, columns)
