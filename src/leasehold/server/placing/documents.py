"""Restrictions, wishes and homes as they lie in the records, by directory."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from leasehold.backends.http.names import decoded, encoded
from leasehold.server.placing.choice import nearest
from leasehold.server.placing.home import Home
from leasehold.server.placing.rules import Rule
from leasehold.server.placing.table import Table
from leasehold.server.records.port import Record, Records

RULE, PIN, HOME = "restriction", "pin", "route"
"""Kinds of records."""

_ROOT = "/"
"""What everything is called there, as a name is at least one character long."""


class Pin(Struct, frozen=True):
    """Where a directory was told to live."""

    place: str


def record_name(directory: bytes) -> str:
    """What a directory is called among the records."""
    return encoded(directory) if directory else _ROOT


def directory_of(name: str) -> bytes:
    """The directory that is called so there."""
    return b"" if name == _ROOT else decoded(name)


@dataclass(frozen=True, slots=True)
class Documents:
    """All of one moment."""

    rules: dict[bytes, Rule]
    pins: dict[bytes, str]
    homes: dict[bytes, Home]
    versions: dict[tuple[str, bytes], int]

    def home_of(self, directory: bytes, default: Home) -> Home:
        """Where a directory lives; of one that has no home of its own it is that around it."""
        return nearest(self.homes, directory) or default

    @property
    def directories(self) -> set[bytes]:
        """Those of which something is said."""
        return {*self.rules, *self.pins, *self.homes}


async def read_all(records: Records) -> Documents:
    """Everything that is said of where directories live. Raises `BackendUnavailable`."""
    rules = await records.all(RULE)
    pins = await records.all(PIN)
    homes = await records.all(HOME)
    return Documents(
        {directory_of(each.name): read(each, Rule) for each in rules},
        {directory_of(each.name): read(each, Pin).place for each in pins},
        _homes(homes),
        {
            (each.kind, directory_of(each.name)): each.version
            for found in (rules, pins, homes)
            for each in found
        },
    )


async def read_table(records: Records, default: Home, sent: float) -> Table:
    """Where directories live, as of `sent` or later. Raises `BackendUnavailable`."""
    return Table(default, _homes(await records.all(HOME)), sent)


def _homes(found: Sequence[Record]) -> dict[bytes, Home]:
    return {directory_of(each.name): read(each, Home) for each in found}


def read[T](found: Record, kind: type[T]) -> T:
    """A document's value."""
    return msgspec.json.decode(found.value, type=kind)


async def write(
    records: Records, kind: str, directory: bytes, value: Struct, expected: int
) -> None:
    """Write one that is of that version still. Raises `Conflict`, `BackendUnavailable`."""
    await records.put(kind, record_name(directory), msgspec.json.encode(value), expected)
