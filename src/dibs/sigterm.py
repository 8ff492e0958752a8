"""SIGTERM, for a program that does nothing else than lead or run tasks."""

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NoReturn


class Terminated(BaseException):
    """SIGTERM, in a thread's program: as an interrupt from the keyboard would be."""


def _is_unhandled() -> bool:
    """Nobody else handles it, and this is the thread in which Python would."""
    ours = threading.current_thread() is threading.main_thread()
    return ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@contextmanager
def on_sigterm(callback: Callable[[], object]) -> Generator[None]:
    """Call back in the running loop when the process is told to end, unless somebody else does.

    Does nothing outside the main thread, and where loops know no signals.
    """
    if not _is_unhandled():
        yield
        return
    loop = sys.modules["asyncio"].get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, callback)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def raising_on_sigterm() -> Generator[None]:
    """Raise `Terminated` when the process is told to end, unless somebody else handles that.

    Does nothing outside the main thread.
    """
    if not _is_unhandled():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
