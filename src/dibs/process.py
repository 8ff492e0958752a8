"""Forks, SIGTERM, and threads that no interrupt can jam.

A Ctrl-C may come between any two bytecodes of the main thread. The standard library's events, conditions
and futures, and `Thread.start()`, which waits for an event, keep a lock for some bytecodes of Python: an
interrupt just then leaves it taken for ever. `Gate` and `start_thread` are one operation in C on one lock.
After a fork the child holds nothing, and writes nothing to what it inherited.
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
    """Something that must not live on in a child as it is."""

    def after_fork(self) -> None:
        """In the child: make fresh locks, drop inherited sockets without writing."""


class _Generation:
    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


generation = _Generation()
"""Counts forks between the first process and this one; a lease of another number isn't ours."""

_forkables: WeakSet[Forkable] = WeakSet()


def on_fork(thing: Forkable) -> None:
    """Have `thing.after_fork()` called in every child, as long as the thing lives."""
    _forkables.add(thing)


class FreshLock:
    """A lock that every child has anew, as another thread of the parent may have held it.

    To be taken by `with lock.held`. Were it `with lock`, a Ctrl-C could come between the taking and the
    block, in our own bytecodes, and nobody would ever release it.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        self.held = threading.Lock()


def _after_in_child() -> None:
    generation.number += 1
    for thing in list(_forkables):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_in_child)


class Gate:
    """Shut until it is opened, once, by any thread."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let everybody through, from now on."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was open already

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is open; tell whether it is."""
        longest = threading.TIMEOUT_MAX
        opened = self._lock.acquire(timeout=longest if timeout is None else min(timeout, longest))
        if opened:
            self.open()
        return opened


def start_thread(body: Callable[[], None], name: str) -> Gate:
    """Start a daemon thread; the gate opens when it has ended, or could not be started.

    Raises `RuntimeError` where the interpreter ends, and starts no threads any more.
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

    _thread.start_new_thread(start, ())  # where no interrupt comes
    return ended


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
