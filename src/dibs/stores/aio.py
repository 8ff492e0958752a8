"""What the asyncio connections of several stores share."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Reply
from dibs.stores.port import Done, GiveUp, as_dibs

BUFFER = 65536
"""Bytes that are read at a time, at most."""


def submit_in_task(applying: Coroutine[Any, Any, Sequence[Reply]], done: Done) -> GiveUp:
    """Apply a batch in a task of its own, and call `done` with its result; what is returned cancels it.

    The task starts at once: the batch leaves a turn earlier, and a loop that is closed now finds it begun.
    It lives as long as somebody has what is returned: loops keep only weak references to their tasks.
    """
    task = asyncio.Task(_tell(applying, done), loop=asyncio.get_running_loop(), eager_start=True)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
    return task.cancel


async def _tell(applying: Coroutine[Any, Any, Sequence[Reply]], done: Done) -> None:
    try:
        result: Sequence[Reply] | DibsError = await applying
    except asyncio.CancelledError:
        done(BackendUnavailable("the event loop shut down while the store was being asked"))
        raise
    except Exception as error:  # noqa: BLE001  # whatever it was, the callers are told
        result = as_dibs(error)
    done(result)


class LoopEnd:
    """Calls back when the running loop cancels its tasks, as `asyncio.run` does at its end.

    A loop that ends leaves no time for more, and a socket left open in it would be complained of.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._task = asyncio.get_running_loop().create_task(self._wait())
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed

    async def _wait(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if self._action is not None:
                self._action()

    def forget(self) -> None:
        """Call nothing any more."""
        self._action = None
        self._task.cancel()


class BufferedLink(asyncio.BufferedProtocol):
    """A connection in an event loop that reads into a lasting buffer, and that a forked child can close.

    For each read of an ordinary protocol asyncio has the system map 256 KiB of fresh memory, unless the heap
    happens to have them, and that can cost more than all else here. Subclasses set `_transport`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.usable: bool = True
        self.parting: bool = False
        """It is not used much longer: to be closed as soon as nobody waits."""
        self._loop = loop
        self._buffer = memoryview(bytearray(BUFFER))  # TLS cuts it, and would cut a copy otherwise
        self._transport: asyncio.Transport | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def _abort(self) -> None:
        """It is of no use any more: let go of the socket."""
        self.usable = False
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    def close_in_child(self) -> None:
        """The loop's selector is the parent's too: put nothing in the socket's place, and no more."""
        transport, self._transport = self._transport, None
        self.usable = False
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, sock.fileno(), inheritable=False)
            os.close(nothing)


def resolve[T](future: asyncio.Future[T], found: T | Exception) -> None:
    """Give whoever awaits an answer what came of it."""
    if future.done():
        return  # whoever asked has left
    if isinstance(found, Exception):
        future.set_exception(found)
        future.exception()  # so that nobody complains where it is not awaited
    else:
        future.set_result(found)
