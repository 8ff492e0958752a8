"""A connection in an event loop which reads into a buffer that stays, and which a forked child can close.

For each read of an ordinary protocol asyncio has the system map 256 KiB of fresh memory, unless the heap
happens to have them, and that can cost more than all else here.
"""

import asyncio
import os

BUFFER = 65536
"""So many bytes are read at a time."""


class BufferedLink(asyncio.BufferedProtocol):
    """What such connections share. Each sets `_transport` as it is made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.usable = True
        self.parting = False
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
