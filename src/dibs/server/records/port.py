"""What the service needs of a place to remember things in: small documents, and a log.

Leases are in no record: they are in a store. Records are few and change rarely; every server of one
service shares them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """A document. `version` is 1 when it is made and rises by one with every change."""

    kind: str
    name: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log; `number` rises, though not always by one."""

    number: int
    value: bytes


class Conflict(Exception):
    """The record is of another version than was expected: read it again."""


class Records(Protocol):
    """Asynchronous; one event loop uses it. Whatever goes wrong with the place raises `BackendUnavailable`.

    A kind is a word of ours (`key`, `restriction`, …); a name is any text of 1..2048 characters.
    """

    async def open(self) -> None:
        """Connect, and make what is missing."""

    async def close(self) -> None:
        """Disconnect."""

    async def worries(self) -> Sequence[str]:
        """Why this may be no place for records, in sentences for whoever runs the server."""

    async def revision(self) -> int:
        """Rises with every change of any record; cheap, to be asked about every second."""

    async def get(self, kind: str, name: str) -> Record | None:
        """One document, or None."""

    async def all(self, kind: str) -> Sequence[Record]:
        """Every document of a kind, by name. All of one moment, or of a moment between two."""

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        """Write a document that is of version `expected` still (0: that is not there). Raises `Conflict`."""

    async def delete(self, kind: str, name: str, expected: int) -> None:
        """Remove a document that is of version `expected` still. Raises `Conflict`."""

    async def append(self, value: bytes) -> int:
        """Add a line to the log; return its number. Nothing changes one."""

    async def log(self, before: int | None, limit: int) -> Sequence[Entry]:
        """The newest lines (older than number `before`), newest first."""

    async def oldest(self, limit: int) -> Sequence[Entry]:
        """The oldest lines, oldest first."""

    async def forget(self, lines: Sequence[Entry]) -> None:
        """Remove these lines. Some may be gone already."""
