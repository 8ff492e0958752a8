"""A connection in an event loop, once a child was forked; and answers that nobody awaits."""

import asyncio
import gc
import os
import socket
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from dibs.backends.buffered import BufferedLink, resolve

LONG = 30.0


class Link(BufferedLink):
    """One that keeps what it hears."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.heard = asyncio.Queue[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard.put_nowait(bytes(self._buffer[:nbytes]))

    def hang_up(self) -> None:
        self._abort()


@contextmanager
def child_of(link: Link) -> Generator[bytes]:
    """A child that lives on once it has closed its copy of a link; what it thinks of that."""
    (told, tell), (stay, leave) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner's own
        pid = os.fork()
    if pid == 0:
        try:
            link.close_in_child()
            os.write(tell, b"usable" if link.usable else b"closed")
            os.read(stay, 1)
        finally:
            os._exit(0)
    try:
        yield os.read(told, 10)
    finally:
        os.write(leave, b".")
        os.waitpid(pid, 0)
        for end in (told, tell, stay, leave):
            os.close(end)


def test_a_child_lets_go_of_it_and_the_parent_does_not() -> None:
    async def case() -> None:
        here, there = socket.socketpair()
        there.setblocking(False)
        loop = asyncio.get_running_loop()
        link = Link(loop)
        await loop.create_connection(lambda: link, sock=here)
        with there, child_of(link) as told:
            assert told == b"closed"
            async with asyncio.timeout(LONG):
                await loop.sock_sendall(there, b"for the parent")
                assert await link.heard.get() == b"for the parent"
                link.hang_up()
                assert await loop.sock_recv(there, 1) == b"", "the child still has it open"

    asyncio.run(case())


def test_a_link_that_was_never_connected_is_closed_in_a_child_too() -> None:
    async def case() -> None:
        link = Link(asyncio.get_running_loop())
        link.close_in_child()
        assert not link.usable

    asyncio.run(case())


def test_what_came_of_it_is_told_once() -> None:
    async def case() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        answered, failed, left = (asyncio.Future[int](loop=loop) for _ in range(3))
        left.cancel()
        resolve(answered, 7)
        resolve(answered, OSError("too late"))
        resolve(left, 7)
        resolve(failed, OSError("broken"))
        assert (answered.result(), left.cancelled()) == (7, True)
        assert isinstance(failed.exception(), OSError)
        resolve(asyncio.Future[int](loop=loop), OSError("nobody awaits it"))
        gc.collect()
        assert complaints == []

    asyncio.run(case())
