"""What the tests of the connections share: both worlds, and a look behind the scenes."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import psycopg
import pytest

from dibs.model import Acquire, Command, Reply
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore
from dibs.stores.postgres.connection import Wire
from tests.connections import connection_to

type Mode = Literal["async", "blocking"]
type Body = Callable[["Room"], Coroutine[Any, Any, None]]

KEY = b"lock:a"


class Room:
    """A store of one database, in one of the two worlds; what is opened is closed at the end."""

    def __init__(self, mode: Mode, url: str) -> None:
        self.mode = mode
        self.url = url
        self.store = PostgresStore(url)
        self._open: list[Any] = []

    async def connect(self, *, listen: bool = True, url: str | None = None) -> Any:
        """A backend, of this store or of another one."""
        store = self.store if url is None else PostgresStore(url)
        backend = connection_to(store, self.mode)
        self._open.append(backend)
        await backend.open(listen=listen)
        return backend

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()

    def run(self, body: Body) -> None:
        if self.mode == "async":
            asyncio.run(self._closing(body))
        else:
            step(self._closing(body))

    async def _closing(self, body: Body) -> None:
        try:
            await body(self)
        finally:
            await self.close()


both = pytest.mark.parametrize("mode", ["async", "blocking"])


def acquire(name: str, key: bytes = KEY, ttl: float = 30.0, **more: Any) -> Acquire:
    return Acquire(key, name, f"owner-{name}", ttl, **more)


async def say(backend: Any, command: Command) -> Reply:
    replies: Sequence[Reply] = await backend.apply([command])
    return replies[0]


def wire_of(backend: Any) -> Wire:
    """The connection that a backend asks on."""
    wire: Wire = backend._session.wire
    return wire


def pid_of(backend: Any) -> int:
    """The server process at the other end of it."""
    return wire_of(backend).pgconn.backend_pid


def ear_of(backend: Any, mode: Mode) -> int:
    """The server process that pushes to a backend."""
    wire = backend._listening.wire if mode == "async" else wire_of(backend)
    pid: int = wire.pgconn.backend_pid
    return pid


def admin(url: str) -> psycopg.Connection[Any]:
    """A plain connection, to look and to disturb."""
    return psycopg.connect(url, autocommit=True)


def terminate(url: str, pid: int) -> None:
    """End a server process, and wait until it is gone."""
    with admin(url) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


@contextmanager
def stalled(pid: int) -> Iterator[None]:
    """A server process takes in what it is sent, and does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Traced:
    """What went over a connection while it was looked at, message by message."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed at the end of the block

    def __enter__(self) -> Self:
        self._wire.pgconn.trace(self._file.fileno())
        return self

    def __exit__(self, *about: object) -> None:
        self._wire.pgconn.untrace()
        self._file.seek(0)
        self._lines = self._file.read().splitlines()
        self._file.close()

    def sent(self, kind: str) -> int:
        """How many messages of a kind went to the server."""
        return sum("\tF\t" in line and f"\t{kind}\t" in f"{line}\t" for line in self._lines)
