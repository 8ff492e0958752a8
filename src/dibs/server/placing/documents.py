"""Restrictions, wishes and homes as they lie in the records, by directory."""

from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec import Struct, structs

from dibs.errors import Corrupt
from dibs.server.placing.choice import Unsatisfiable, chosen, lives_in, nearest
from dibs.server.placing.home import Home
from dibs.server.placing.listing import Listing, directory_of, record_name
from dibs.server.placing.placement import Place
from dibs.server.placing.rules import Rule
from dibs.server.placing.table import Table
from dibs.server.records.port import Conflict, Record, Records

RULE, PIN, LISTING = "restriction", "pin", "placements"
"""Kinds of records."""

_LIST = "all"
"""The name of the list of placements among the records of its kind."""


class Pin(Struct, frozen=True):
    """Where a directory was told to live."""

    place: str


@dataclass(slots=True)
class Documents:
    """What the records say of directories. The list was read first: see `outdate`."""

    rules: dict[bytes, Rule]
    pins: dict[bytes, str]
    homes: dict[bytes, Home]
    listing: Listing
    version: int
    """Of the list."""
    versions: dict[tuple[str, bytes], int]

    def home_of(self, directory: bytes) -> Home:
        """Where a directory lives: its own home, or the one around it."""
        return nearest(self.homes, directory) or Home(self.listing.default)

    def staying(self, directory: bytes, to: str, here: Container[str]) -> list[bytes]:
        """Those that live in a directory's home and should not go there with it."""
        return [
            each
            for each in sorted(self.directories)
            if each not in self.homes
            and each != directory
            and each.startswith(directory)
            and lives_in(self.homes, each) == lives_in(self.homes, directory)
            and not self._goes_along(each, to, here)
        ]

    def _goes_along(self, directory: bytes, to: str, here: Container[str]) -> bool:
        try:
            return self.wanted(directory, here) == to
        except Unsatisfiable:
            return False

    def wanted(self, directory: bytes, here: Container[str]) -> str:
        """Where it should live: where it does, or at one of the placements that are `here`.

        Raises `Unsatisfiable`.
        """
        now_at = self.home_of(directory).place
        places = [each.place for each in self.listing.places if each.name in here]
        if now_at not in here:
            places.append(self.place(now_at))
        return chosen(self.rules, self.pins, directory, now_at, places)

    def place(self, name: str) -> Place:
        """The placement of that name, as restrictions see it."""
        return next((each.place for each in self.listing.places if each.name == name), Place(name))

    @property
    def directories(self) -> set[bytes]:
        """Those of which something is said."""
        return {*self.rules, *self.pins, *self.homes}


async def read_all(records: Records) -> Documents:
    """Everything that is said of where directories live. Raises `BackendUnavailable`, `Corrupt`."""
    listing, version = _found(await read_listing(records))
    rules = await records.all(RULE)
    pins = await records.all(PIN)
    return Documents(
        {directory_of(each.name): read(each, Rule) for each in rules},
        {directory_of(each.name): read(each, Pin).place for each in pins},
        listing.homes_by_directory(),
        listing,
        version,
        {(each.kind, directory_of(each.name)): each.version for each in (*rules, *pins)},
    )


async def read_table(records: Records, sent: float) -> Table:
    """Where directories live, as of `sent` or later. Raises `BackendUnavailable`, `Corrupt`."""
    listing, version = _found(await read_listing(records))
    return Table(listing, version, sent)


async def read_listing(records: Records) -> tuple[Listing | None, int]:
    """The list of placements, None before the first server, and its version. Raises `BackendUnavailable`."""
    found = await records.get(LISTING, _LIST)
    return (None, 0) if found is None else (read(found, Listing), found.version)


async def write_listing(records: Records, listing: Listing, expected: int) -> None:
    """Write it if it is of that version still. Raises `Conflict`, `BackendUnavailable`."""
    await records.put(LISTING, _LIST, msgspec.json.encode(listing), expected)


async def outdate(records: Records) -> None:
    """Make every mover fail that has read the list before, as it may not know what was just written.

    A mover reads the list first and writes it by compare-and-set. So whatever it begins after this, it has
    read the restrictions and wishes that were written before.
    """
    while True:
        listing, version = _found(await read_listing(records))
        with suppress(Conflict):
            return await write_listing(records, listing, version)


def _found(read: tuple[Listing | None, int]) -> tuple[Listing, int]:
    listing, version = read
    if listing is None:
        raise Corrupt(
            "the list of placements is gone from the records, and perhaps keys and restrictions too: "
            "restore the records"
        )
    return listing, version


def read[T](found: Record, kind: type[T]) -> T:
    """A document's value."""
    return msgspec.json.decode(found.value, type=kind)


async def write(
    records: Records, kind: str, directory: bytes, value: Struct, expected: int
) -> None:
    """Write one that is of that version still. Raises `Conflict`, `BackendUnavailable`."""
    await records.put(kind, record_name(directory), msgspec.json.encode(value), expected)


async def write_homes(
    records: Records, found: Documents, homes: dict[bytes, Home], default: str = ""
) -> None:
    """Write all homes by compare-and-set, and keep `found` up to date. Raises `Conflict`."""
    by_name = {record_name(each): home for each, home in homes.items()}
    listing = structs.replace(
        found.listing, homes=by_name, default=default or found.listing.default
    )
    await write_listing(records, listing, found.version)
    found.listing, found.homes, found.version = listing, homes, found.version + 1
