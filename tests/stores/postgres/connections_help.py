"""A look at the sessions behind connections to PostgreSQL."""

import tempfile
from collections.abc import Sequence
from typing import Any, Self

import psycopg

from dibs.model import Command, Reply
from dibs.stores.postgres.connection import Wire


async def say(backend: Any, command: Command) -> Reply:
    replies: Sequence[Reply] = await backend.apply([command])
    return replies[0]


def wire_of(backend: Any) -> Wire:
    """The connection that a backend asks on."""
    wire: Wire = backend._session.wire
    return wire


def admin(url: str) -> psycopg.Connection[Any]:
    """A plain connection, to look and to disturb."""
    return psycopg.connect(url, autocommit=True)


class Traced:
    """What went over a connection while it was looked at, message by message."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._file = tempfile.TemporaryFile("w+")

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
