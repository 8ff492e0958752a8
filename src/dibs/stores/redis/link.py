"""One connection to one server, as the rest of this package sees it, in either world."""

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import hiredis

from dibs.stores.redis.settings import Endpoint, Settings

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

    type Socket = socket.socket | TransportSocket

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
"""The bytes of one command."""

ReplyError = hiredis.ReplyError
"""What an error of the server's is read as: a value, not raised."""

PushNotification = hiredis.PushNotification
HiredisError = hiredis.HiredisError
"""What comes is not the protocol of Redis."""

MORE = object()
"""What a reader gives while a reply is incomplete."""


class Link(Protocol):
    """Requests leave in order, and their answers come in that order.

    After any failure a link is of no use any more, so that the answer to an old request is never
    taken for that to a new one.
    """

    endpoint: Endpoint
    has_functions: bool
    """The ledger is called as a Function, until the server refuses that; see `ledger.py`."""

    @property
    def usable(self) -> bool:
        """Nothing is known to be wrong with it."""

    def ask(self, data: bytes, count: int = 1) -> Awaitable[list[Any]]:
        """Send commands at once; to be awaited: their `count` answers. Raises `OSError`."""

    def close(self) -> None:
        """Hang up; whoever waits for an answer gets an `OSError`."""

    def close_in_child(self) -> None:
        """Let go of what a fork has copied, without a word to the server."""


class Dial(Protocol):
    """Makes links."""

    async def __call__(
        self, settings: Settings, endpoint: Endpoint, greeting: bytes, count: int
    ) -> tuple[Link, list[Any]]:
        """Connect, greet, and bring the `count` answers to that; all within the connect timeout.

        Raises `OSError` or `TimeoutError`, or what the settings of TLS raise.
        """


def keep_alive(sock: "Socket") -> None:
    """Have the kernel find out within a minute that the other side is gone without a word."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Reader(Protocol):
    """What makes replies of bytes."""

    def feed(self, data: bytearray | memoryview, offset: int, length: int) -> None:
        """Take in a part of a buffer, which may be overwritten then."""

    def gets(self) -> Any:
        """The next reply, or `MORE`."""


def new_reader() -> Reader:
    """One of hiredis's, whose types say that it reads `bytes` only."""
    return cast(Reader, hiredis.Reader(notEnoughData=MORE))
