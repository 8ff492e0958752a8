"""SIGTERM, for a program that does nothing else than run tasks."""

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def on_sigterm(callback: Callable[[], None]) -> Generator[None]:
    """Call back in the running loop when the process is told to end, unless somebody else does.

    Does nothing outside the main thread, and where loops know no signals.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, callback)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
