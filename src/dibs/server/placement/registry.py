"""The recorded list of placements, and the records about directories: rules, ordered moves, homes.

A directory's *home* is the placement where it lives, and the steps of its move:

    settled at A → draining from A to B → settled at B, or at A again

The list contains all homes, so each step is one compare-and-set on that record. While a directory is
`draining` it still lives at the old placement, and nothing new is granted in it.
"""

from collections.abc import Container
from dataclasses import dataclass
from math import inf
from typing import Literal

import msgspec
from msgspec import Struct, structs

from dibs.errors import Corrupt
from dibs.server.auth.policy import Principal
from dibs.server.placement.rules import (
    Place,
    Rule,
    Unsatisfiable,
    around,
    chosen_place,
    lives_in,
    nearest,
)
from dibs.server.records.port import Record, Records
from dibs.stores.http.names import decoded, encoded

DEADLINE = 900.0
"""Seconds that a directory drains before the leases that remain in it are revoked, unless set otherwise."""

RULE, ORDER, LIST = "restriction", "move", "placements"
"""Kinds of records."""

_ALL = "all"
"""The name of the list among the records of its kind."""

_ROOT = "/"
"""The record name of everything: a name has at least one character."""

SERVICE = Principal("", "the service", frozenset(), ())
"""Author of what servers do by themselves, in the audit log."""

SLACK = 1 << 32
"""Tokens (microseconds) added to the floor by a move: no key is further ahead of its store's clock."""

HIGHEST = (1 << 53) - (1 << 40)
"""The highest floor. It leaves some tokens, as all are below 2^53."""


def record_name(directory: bytes) -> str:
    """The name of a directory in the records."""
    return encoded(directory) if directory else _ROOT


def directory_of(name: str) -> bytes:
    """The directory that has this name in the records."""
    return b"" if name == _ROOT else decoded(name)


class Home(Struct, frozen=True, omit_defaults=True):
    """The placement of a directory's names, except in directories within it that have a home."""

    place: str
    epoch: int = 0
    """How often it has begun to move."""
    floor: int = 0
    """An earlier placement may have given tokens up to this one."""
    to: str = ""
    """Where it moves to; empty while it is settled."""
    since: float = 0.0
    """When it began to drain, in seconds since 1970."""
    is_overdue: bool = False
    """Its deadline has passed: the leases that remain are revoked."""

    @property
    def phase(self) -> Literal["settled", "draining"]:
        """The current step."""
        return "draining" if self.to else "settled"

    def draining(self, to: str, since: float) -> "Home":
        """Begin to move: grant nothing new until it has moved, or stays."""
        return Home(self.place, self.epoch + 1, self.floor, to, since)

    def overdue(self) -> "Home":
        """Begin to revoke the leases that remain."""
        return structs.replace(self, is_overdue=True)

    def staying(self) -> "Home":
        """Stay at the old placement."""
        return Home(self.place, self.epoch, self.floor)

    def moved(self, last_token: int) -> "Home":
        """Live at the new placement. Raises `Corrupt` if too few tokens are left above `last_token`."""
        floor = max(self.floor, last_token) + SLACK
        if floor > HIGHEST:
            raise Corrupt(
                f"tokens at {self.place} are at {last_token}: above that, too few are left"
            )
        return Home(self.to, self.epoch, floor)


class Deadline(Struct, frozen=True):
    """How long a directory that must move waits for its leases."""

    seconds: float | None = DEADLINE
    """After so many seconds of draining, the leases that remain are revoked.

    None: the directory never drains. It moves when nobody holds, or waits for, any lock in it.
    """
    set_at: float = 0.0
    """When an administrator set it, in seconds since 1970. A drain that had begun has that much longer."""

    def after(self, since: float) -> float:
        """The end of a drain that began at `since`, in seconds since 1970; infinite for None."""
        return inf if self.seconds is None else max(since, self.set_at) + self.seconds


class RecordedRule(Struct, frozen=True):
    """A restriction on a directory."""

    rule: Rule
    deadline: Deadline = Deadline()


class MoveOrder(Struct, frozen=True):
    """An administrator's order that a directory lives at a placement."""

    place: str
    deadline: Deadline = Deadline()


class RecordedPlacement(Struct, frozen=True, omit_defaults=True):
    """A placement in the list. It contains nothing secret."""

    name: str
    stores: tuple[str, ...]
    """The addresses of its store, see `identity`; the latest comes last."""
    provider: str = ""
    region: str = ""

    @property
    def place(self) -> Place:
        """The placement as restrictions see it."""
        return Place(self.name, self.provider, self.region)


class PlacementList(Struct, frozen=True, omit_defaults=True):
    """All placements, in the order in which they were first recorded."""

    places: tuple[RecordedPlacement, ...]
    default: str
    """The placement of directories without a home."""
    fresh: float
    """The longest time, in seconds, that a server of this service relies on one reading."""
    was_lone: bool = False
    """There was one placement only, and a running server may not know of another."""
    homes: dict[str, Home] = {}
    """The homes of directories that ever moved, by their record names."""
    mark: str = ""
    """Name of the marker in the first store that says that there are several placements: see `markers`."""

    def homes_by_directory(self) -> dict[bytes, Home]:
        """The homes by directory."""
        return {directory_of(name): home for name, home in self.homes.items()}

    @property
    def is_lone(self) -> bool:
        """There is one placement only, so nothing can move."""
        return len(self.places) == 1

    @property
    def stores(self) -> frozenset[str]:
        """All recorded addresses."""
        return frozenset(store for each in self.places for store in each.stores)

    def of_store(self, address: str) -> RecordedPlacement | None:
        """The placement of the store at that address."""
        return next((each for each in self.places if address in each.stores), None)


# -- reading and writing the records ----------------------------------------------------------------


@dataclass(slots=True)
class DirectoryRecords:
    """All that the records say about directories. The list was read first: see `restrictions.outdate`."""

    rules: dict[bytes, Rule]
    orders: dict[bytes, str]
    homes: dict[bytes, Home]
    listing: PlacementList
    version: int
    """The version of the list."""
    versions: dict[tuple[str, bytes], int]
    deadlines: dict[tuple[str, bytes], Deadline]
    """By kind of record and directory."""

    @property
    def directories(self) -> set[bytes]:
        """Directories with a rule, an order or a home."""
        return {*self.rules, *self.orders, *self.homes}

    def place(self, name: str) -> Place:
        """The placement of that name, as restrictions see it."""
        return next((each.place for each in self.listing.places if each.name == name), Place(name))

    def home_of(self, directory: bytes) -> Home:
        """A directory's home, or that of the directory around it."""
        return nearest(self.homes, directory) or Home(self.listing.default)

    def wanted(self, directory: bytes, here: Container[str]) -> str:
        """The placement of a directory as it should be: the current one, or one of those in `here`.

        Raises `Unsatisfiable`.
        """
        now_at = self.home_of(directory).place
        places = [each.place for each in self.listing.places if each.name in here]
        if now_at not in here:
            places.append(self.place(now_at))
        return chosen_place(self.rules, self.orders, directory, now_at, places)

    def deadline_of(self, directory: bytes, to: str) -> Deadline:
        """The deadline of a directory's move: the order's, else the strictest of the rules that force it."""
        ordered_by = next((each for each in around(directory) if each in self.orders), None)
        if ordered_by is not None and self.orders[ordered_by] == to:
            return self.deadlines[ORDER, ordered_by]
        place = self.place(self.home_of(directory).place)
        forced_by = [
            self.deadlines[RULE, each]
            for each in around(directory)
            if each in self.rules and self.rules[each].objection(place)
        ]
        return min(forced_by, key=lambda each: each.seconds or inf, default=Deadline())

    def staying(self, directory: bytes, to: str, here: Container[str]) -> list[bytes]:
        """Directories that live in a directory's home, and should not move with it."""
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


async def read_all(records: Records) -> DirectoryRecords:
    """Read everything about directories. Raises `BackendUnavailable`, `Corrupt`."""
    listing, version = await read_existing_list(records)
    found = DirectoryRecords({}, {}, listing.homes_by_directory(), listing, version, {}, {})
    for record in await records.all(RULE):
        rule, directory = _value(record, RecordedRule), directory_of(record.name)
        found.rules[directory] = rule.rule
        found.deadlines[RULE, directory] = rule.deadline
        found.versions[RULE, directory] = record.version
    for record in await records.all(ORDER):
        order, directory = _value(record, MoveOrder), directory_of(record.name)
        found.orders[directory] = order.place
        found.deadlines[ORDER, directory] = order.deadline
        found.versions[ORDER, directory] = record.version
    return found


async def read_list(records: Records) -> tuple[PlacementList | None, int]:
    """The list, None before the first server, and its version. Raises `BackendUnavailable`."""
    found = await records.get(LIST, _ALL)
    return (None, 0) if found is None else (_value(found, PlacementList), found.version)


async def read_existing_list(records: Records) -> tuple[PlacementList, int]:
    """The list and its version. Raises `BackendUnavailable`, and `Corrupt` if it is gone."""
    listing, version = await read_list(records)
    if listing is None:
        raise Corrupt(
            "the list of placements is gone from the records, and perhaps keys and restrictions too: "
            "restore the records"
        )
    return listing, version


async def write_list(records: Records, listing: PlacementList, expected: int) -> None:
    """Write the list if it still has that version. Raises `Conflict`, `BackendUnavailable`."""
    await records.put(LIST, _ALL, msgspec.json.encode(listing), expected)


def _value[T](found: Record, kind: type[T]) -> T:
    return msgspec.json.decode(found.value, type=kind)
