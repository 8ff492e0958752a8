"""Presses Ctrl-C when exactly so many bytecodes have run."""

import _imp
import _thread
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import CodeType

TOOL = 5
"""Nobody else's number at `sys.monitoring`."""


class Interrupting:
    """Runs something and lets SIGINT arrive at its n-th bytecode; `reached` tells if it came so far.

    The interpreter then raises KeyboardInterrupt wherever it really looks for signals next: at the end
    of a call, at the start of a function, at the end of a loop. Were our callback to raise it, it would
    come at bytecodes where it can't, and were it to call anything that sets the signal, it would come
    within the callback; looking up a missing key calls the factory without that look.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self._main = threading.get_ident()
        self._press: defaultdict[int, None] = defaultdict(_thread.interrupt_main)

    @property
    def reached(self) -> bool:
        return self._left <= 0

    def run(self, action: Callable[[], object]) -> bool:
        """Tell whether KeyboardInterrupt came out of the action."""
        watch = sys.monitoring
        event = watch.events.INSTRUCTION
        watch.use_tool_id(TOOL, "interrupting")
        watch.register_callback(TOOL, event, self._bytecode)
        try:
            try:
                watch.set_events(TOOL, event)
                action()
            finally:
                self._stop()
        except KeyboardInterrupt as error:
            _drop_frames(error)
            return True
        finally:
            watch.register_callback(TOOL, event, None)
            watch.free_tool_id(TOOL)
            _let_go_of_imports()
        return False

    def _bytecode(self, code: CodeType, offset: int) -> None:
        if threading.get_ident() != self._main:
            return
        self._left -= 1
        if self._left == 0:
            self._stop()  # what follows here would look for signals, too
            self._press[0]

    def _stop(self) -> None:
        sys.monitoring.set_events(TOOL, 0)


def at_bytecodes(
    stride: int, prepare: Callable[[], Callable[[], object]], *, least: int
) -> Iterator[tuple[int, bool]]:
    """Interrupt what `prepare` returns at each such bytecode, until it ends before: after more than `least`.

    Yields after each the bytecode, and whether KeyboardInterrupt came out of it.
    """
    at, interrupting = 0, Interrupting(0)
    while at == 0 or interrupting.reached:
        at += stride
        action, interrupting = prepare(), Interrupting(at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            came = interrupting.run(action)
        yield at, came
    assert at > least, "far too few bytecodes: nothing was traced"


def _let_go_of_imports() -> None:
    """After an interrupt within `importlib` the interpreter's lock stays ours: nobody else could import."""
    try:
        while _imp.lock_held():
            _imp.release_lock()
    except RuntimeError:
        pass  # it is another thread's, which imports something


def _drop_frames(error: BaseException | None) -> None:
    """Whoever keeps the traceback keeps all that its frames hold."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
