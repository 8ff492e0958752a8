"""Forks, SIGTERM, and threads that no interrupt can block.

A Ctrl-C can come between any two bytecodes of the main thread. The standard library's events, conditions
and futures, and `Thread.start()`, which waits for an event, hold a lock during some bytecodes of Python: an
interrupt at this moment leaves the lock taken for ever. `Gate` and `start_thread` are one operation in C on
one lock. After a fork the child holds no leases, and writes nothing to connections that it inherited.
"""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NoReturn, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """An object that must be reset in a child process."""

    def after_fork(self) -> None:
        """In the child: make new locks, and drop inherited sockets without writing to them."""


class _Generation:
    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number: int = 0


generation: _Generation = _Generation()
"""The number of forks between the first process and this one. Leases of other numbers are not ours."""

_forkables: WeakSet[Forkable] = WeakSet()


def on_fork(thing: Forkable) -> None:
    """Call `thing.after_fork()` in every child, as long as the thing exists."""
    _forkables.add(thing)


class FreshLock:
    """A lock that is new in every child, because another thread of the parent can hold it during the fork.

    Write `with lock.held`. With a `__enter__` of our own, a Ctrl-C could come between acquiring and the
    block, and the lock would never be released.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held: threading.Lock = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        self.held = threading.Lock()


def _after_in_child() -> None:
    generation.number += 1
    for thing in list(_forkables):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_in_child)


class Gate:
    """Closed until any thread opens it, once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let all waiting threads through, from now on."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was open already

    def wait(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds (None: no limit); return whether it is open."""
        longest = threading.TIMEOUT_MAX
        opened = self._lock.acquire(timeout=longest if timeout is None else min(timeout, longest))
        if opened:
            self.open()
        return opened


def start_thread(body: Callable[[], None], name: str) -> Gate:
    """Start a daemon thread; the gate opens when it has ended, or could not be started.

    Raises `RuntimeError` if the interpreter is shutting down.
    """
    ended = Gate()

    def run() -> None:
        try:
            body()
        finally:
            ended.open()

    thread = threading.Thread(target=run, name=name, daemon=True)

    def start() -> None:
        try:
            thread.start()
        except RuntimeError:
            ended.open()

    _thread.start_new_thread(start, ())  # interrupts only reach the main thread
    return ended


class Terminated(BaseException):
    """SIGTERM in the main thread, as `KeyboardInterrupt` is for Ctrl-C."""


def _is_unhandled() -> bool:
    """Whether the program does not handle SIGTERM, and this thread can."""
    ours = threading.current_thread() is threading.main_thread()
    return ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@contextmanager
def on_sigterm(callback: Callable[[], object]) -> Generator[None]:
    """Call `callback` in the running loop on SIGTERM, unless the program handles it.

    Does nothing outside of the main thread, and in loops without signals.
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
    """Raise `Terminated` on SIGTERM, unless the program handles it.

    Does nothing outside of the main thread.
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
