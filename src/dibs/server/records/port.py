"""The interface to a place for records: small documents, and a log.

Leases are not in the records, they are in a store. There are few records, and they change rarely. All
servers of a service share them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dibs.errors import Corrupt, IncompatibleVersion


@dataclass(frozen=True, slots=True)
class Record:
    """A document. `version` is 1 at first, and rises by one with every change."""

    kind: str
    name: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of the log. Later lines have higher numbers, with gaps."""

    number: int
    value: bytes


class Conflict(Exception):
    """The record has another version than expected. Read it again."""


class Records(Protocol):
    """All methods are called in one event loop, and raise `BackendUnavailable` if the place fails.

    A kind is a word such as `key` or `restriction`. A name is text without NUL.
    """

    async def open(self) -> None:
        """Connect, and make what is missing."""

    async def close(self) -> None:
        """Disconnect. The next call connects again."""

    async def warnings(self) -> Sequence[str]:
        """Reasons why records can get lost here, as sentences for the operator."""

    async def revision(self) -> int:
        """A number that rises with every change of a record. Cheap enough to read every second."""

    async def get(self, kind: str, name: str) -> Record | None:
        """Return a document, or None."""

    async def all(self, kind: str) -> Sequence[Record]:
        """All documents of a kind, ordered by name. They are from one moment."""

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        """Write a document if its version is `expected`; 0 means that there is none. Raises `Conflict`."""

    async def delete(self, kind: str, name: str, expected: int) -> None:
        """Remove a document if its version is `expected`. Raises `Conflict`."""

    async def append(self, value: bytes) -> int:
        """Add a line to the log; return its number. Lines never change."""

    async def log(self, before: int | None, limit: int) -> Sequence[LogEntry]:
        """The newest lines (those before number `before`), newest first."""

    async def oldest(self, limit: int) -> Sequence[LogEntry]:
        """The oldest lines, oldest first."""

    async def forget(self, lines: Sequence[LogEntry]) -> None:
        """Remove lines. Some may be gone already."""


# ---- limits, and data that cannot be read ---------------------------------------------------------

FORMAT = 1
"""The format of stored records. Raise it when older releases could not read them."""

MAX_VALUE = 1 << 20
"""Bytes of a document, or of a line of the log."""

MAX_PAGE = 1000
"""Lines of the log in one page, at most."""


def check_value(value: bytes) -> None:
    """Raise `ValueError` for a value that is too large."""
    if len(value) > MAX_VALUE:
        raise ValueError(f"a record is {MAX_VALUE} bytes at most, and this one is {len(value)}")


def check_format(found: object, place: str) -> None:
    """Raise `Corrupt` or `IncompatibleVersion` unless this release reads that format."""
    if type(found) is not int:
        raise unreadable(place, "no format number")
    if found != FORMAT:
        raise IncompatibleVersion(
            f"the service's records in {place} have format {found}, and this release reads format "
            f"{FORMAT}: run the same release on all servers"
        )


def unreadable(place: str, what: str) -> Corrupt:
    """The error for data that Dibs did not write."""
    return Corrupt(
        f"the service's records in {place} can't be read ({what}), so no API key is accepted: "
        "check what wrote there, and restore a backup"
    )
