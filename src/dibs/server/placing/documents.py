"""Restrictions, wishes and homes as they lie in the records, by directory."""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct, structs

from dibs.backends.http.names import decoded, encoded
from dibs.errors import Corrupt
from dibs.server.placing.choice import Unsatisfiable, around, chosen, nearest
from dibs.server.placing.home import HIGHEST, Home
from dibs.server.placing.listing import Listing
from dibs.server.placing.placement import Place
from dibs.server.placing.rules import Rule
from dibs.server.placing.table import Table
from dibs.server.records.port import Record, Records

RULE, PIN, HOME, LISTING = "restriction", "pin", "route", "placements"
"""Kinds of records."""

_LIST = "all"
"""What the list of placements is called among the records of its kind."""

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
    listing: Listing
    """As it was when the homes were read, or later."""
    versions: dict[tuple[str, bytes], int]

    def home_of(self, directory: bytes) -> Home:
        """Where a directory lives; of one that has no home of its own it is that around it."""
        return nearest(self.homes, directory) or Home(self.listing.default)

    def lives_in(self, directory: bytes) -> bytes:
        """The directory whose home that is: itself, or one around it; all of them if none has one."""
        return next((each for each in around(directory) if each in self.homes), b"")

    def is_written(self, directory: bytes) -> bool:
        """Whether there is a record of its home."""
        return (HOME, directory) in self.versions

    def staying(self, directory: bytes, to: str, here: Container[str]) -> list[bytes]:
        """Those that live in a directory's home and should not go there with it."""
        return [
            each
            for each in sorted(self.directories)
            if each not in self.homes
            and each.startswith(directory)
            and self.lives_in(each) == directory
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
    """Everything that is said of where directories live. Raises `BackendUnavailable`, `Corrupt`.

    What should be is read after what is: see `parting.outdate`.
    """
    homes = await records.all(HOME)
    listing = await _listing(records)
    rules = await records.all(RULE)
    pins = await records.all(PIN)
    return Documents(
        {directory_of(each.name): read(each, Rule) for each in rules},
        {directory_of(each.name): read(each, Pin).place for each in pins},
        _homes(homes),
        listing,
        {
            (each.kind, directory_of(each.name)): each.version
            for found in (rules, pins, homes)
            for each in found
        },
    )


async def read_table(records: Records, sent: float) -> Table:
    """Where directories live, as of `sent` or later. Raises `BackendUnavailable`, `Corrupt`."""
    homes = _homes(await records.all(HOME))
    return Table(await _listing(records), homes, sent)


async def read_listing(records: Records) -> tuple[Listing | None, int]:
    """The list of placements, None before the first server, and its version. Raises `BackendUnavailable`."""
    found = await records.get(LISTING, _LIST)
    return (None, 0) if found is None else (read(found, Listing), found.version)


async def write_listing(records: Records, listing: Listing, expected: int) -> None:
    """Write it if it is of that version still. Raises `Conflict`, `BackendUnavailable`."""
    await records.put(LISTING, _LIST, msgspec.json.encode(listing), expected)


async def _listing(records: Records) -> Listing:
    """After the homes: of whatever they name it says which store that is."""
    listing, _ = await read_listing(records)
    if listing is None:
        raise Corrupt(
            "the records are gone, or some of them: the list of placements is, and so, perhaps, are keys, "
            "restrictions, and where directories live"
        )
    return listing


def _homes(found: Sequence[Record]) -> dict[bytes, Home]:
    """Those of which there are records, and those that have parted from one of these and have none yet."""
    written = {directory_of(each.name): _sane(read(each, Home)) for each in found}
    parted = {each: home.of_parted for home in written.values() for each in home.parted}
    return {**parted, **written}


def _sane(home: Home) -> Home:
    """A floor above which there are no tokens would have nothing granted there, for good.

    Lowered, it is at the top still: the directory stays where it is, as `Home.arrived` says.
    """
    return structs.replace(home, floor=HIGHEST) if home.floor > HIGHEST else home


def read[T](found: Record, kind: type[T]) -> T:
    """A document's value."""
    return msgspec.json.decode(found.value, type=kind)


async def write(
    records: Records, kind: str, directory: bytes, value: Struct, expected: int
) -> None:
    """Write one that is of that version still. Raises `Conflict`, `BackendUnavailable`."""
    await records.put(kind, record_name(directory), msgspec.json.encode(value), expected)
