"""The table of where directories live, as read from the records, and how long it is relied on.

With several placements, a server acknowledges a grant only while its reading is younger than `fresh`,
counted from when the reading was *sent*, and only if the directory has not moved meanwhile. So once
`settled_after` has passed since a directory began to move, every server knows of it or grants nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dibs.errors import BackendUnavailable, Corrupt, DibsError
from dibs.model import Acquire, Command, Gone, Granted, Lost, Renew, Reply, Revoked, Status, Unknown
from dibs.runtime.aio import AsyncRuntime
from dibs.server.background import repeat
from dibs.server.placement.markers import Markers
from dibs.server.placement.registry import Home, PlacementList, read_existing_list
from dibs.server.placement.rules import around
from dibs.server.records.port import Records

FRESH_ALONE = 15.0
"""Seconds for which "there is one placement" is relied on, by the records or by the marker in the store."""

READ_EVERY = 0.5
"""Seconds between two readings."""


def settled_after(fresh: float) -> float:
    """Seconds after a step was written until every server has read it, or grants nothing; by any clock."""
    return 1.02 * fresh + 0.25


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """One reading of the list of placements."""

    listing: PlacementList
    version: int = 0
    """The version of the record."""
    read_at: float = float("-inf")
    """When the reading was sent, by this server's clock."""
    homes: Mapping[bytes, Home] = field(init=False)
    default: Home = field(init=False)
    """The home of every directory without one."""
    is_lone: bool = field(init=False)
    """There is one placement only, so nothing ever moved."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "homes", self.listing.homes_by_directory())
        object.__setattr__(self, "default", Home(self.listing.default))
        object.__setattr__(self, "is_lone", self.listing.is_lone)

    def home_of(self, key: bytes) -> Home:
        """The home of a key."""
        homes = self.homes
        if not homes:
            return self.default
        for each in around(key.partition(b":")[2]):
            found = homes.get(each)
            if found is not None:
                return found
        return self.default

    def places_of(self, prefix: bytes) -> set[str]:
        """The placements that can have keys with this prefix."""
        _, colon, name = prefix.partition(b":")
        within = [home for each, home in self.homes.items() if each.startswith(name)]
        around_it = self.home_of(prefix) if colon else self.default
        return {home.place for home in (around_it, *within)}

    def aged(self, read_at: float) -> "RoutingTable":
        """The same, as read at another time."""
        return RoutingTable(self.listing, self.version, read_at)


_GRANTED = frozenset({Acquire, Renew})
_DENIALS = frozenset({Lost, Unknown, Gone})


def is_grant(command: Command, reply: Reply) -> bool:
    """Whether by this reply somebody holds what they did not hold before."""
    return type(reply) is Granted and type(command) in _GRANTED


def is_denial(reply: Reply) -> bool:
    """Whether it says that nothing is there, while something can be in another store."""
    if type(reply) is Status:
        return not reply.holders
    if type(reply) is Revoked:
        return not reply.count
    return type(reply) in _DENIALS


def _when_tokens_rise(lost: RoutingTable) -> str:
    """When the stores' own clocks are above all floors that moves had set, as the end of a message."""
    floor = max((home.floor for home in lost.homes.values()), default=0)
    if not floor:
        return ""
    at = datetime.fromtimestamp(floor / 1e6 + 60, UTC).isoformat(timespec="seconds")
    return f", and not before {at[:-6]}Z, as fencing tokens would fall"


class TableReader:
    """Reads the table again and again. `first` is the only store, while there is one."""

    def __init__(
        self,
        records: Records,
        now: Callable[[], float],
        table: RoutingTable,
        fresh: float,
        first: AsyncRuntime,
    ) -> None:
        self.table: RoutingTable = table
        self.fresh: float = fresh
        self.every: float = min(READ_EVERY, fresh / 6)
        self.mark: int = 0
        """The number of readings that were sent so far: `read_since` compares with it."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the table has changed."""
        self._records = records
        self._now = now
        self._markers = Markers(lambda: (first,))
        self._revision: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._known = 0

    @property
    def is_fresh(self) -> bool:
        """Whether grants can be acknowledged by the table."""
        table = self.table
        return self._now() - table.read_at < (FRESH_ALONE if table.is_lone else self.fresh)

    @property
    def is_lone(self) -> bool:
        """Whether there is one store, and no other server can have begun to use another."""
        return self.table.is_lone and self.is_fresh

    async def read_since(self, mark: int) -> None:
        """Make sure that the table is of a reading that was sent after `mark`. Raises like `read`."""
        while self._known <= mark:
            await self.read()

    async def read(self) -> None:
        """Read the list, or wait for the reading that is under way.

        Raises `BackendUnavailable`, `Corrupt`.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="dibs placements reading")
        await asyncio.shield(self._reading)  # a caller that leaves takes it from nobody

    async def _read(self) -> None:
        self.mark += 1
        number = self.mark
        try:
            async with asyncio.timeout(max(2 * self.fresh, 1.0)):
                await self._ask()
        except (DibsError, TimeoutError) as error:
            if not self.table.is_lone:
                if isinstance(error, TimeoutError):
                    raise BackendUnavailable("the records take too long to answer") from error
                raise
            await self._ask_the_store()
        self._known = number

    async def _ask(self) -> None:
        sent = self._now()
        known, self._revision = self._revision, None  # nothing is known after a failure
        revision = await self._records.revision()
        if revision == known:
            self.table = self.table.aged(sent)
        else:
            await self._read_list(sent)
        self._revision = revision

    async def _read_list(self, sent: float) -> None:
        before = self.table
        listing, version = await read_existing_list(self._records)
        if version < before.version:
            raise Corrupt(
                "the records have lost information about where directories live. Nothing is granted, as a "
                "lock may be held in another store. Restart all servers once all leases so far have expired"
                f"{_when_tokens_rise(before)}"
            )
        self.table = RoutingTable(listing, version, sent)
        if listing != before.listing:
            self.on_change()

    async def _ask_the_store(self) -> None:
        """The records are away, and a service with one store needs them for no lock.

        The server that adds a second placement puts a marker into the only store first. Without the marker
        there is no second placement.
        """
        sent, mark = self._now(), self.table.listing.mark
        if await self._markers.standing((mark,)):
            self.table = self.table.aged(float("-inf"))
            raise BackendUnavailable("the records are away, and another placement was added")
        self.table = self.table.aged(sent)

    async def keep(self) -> None:
        """Read for ever."""
        try:
            await repeat(self.read, self.every, "where directories live can't be read")
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait((self._reading,))
