"""Moves directories while they are idle.

A directory that should live elsewhere is *frozen*: new acquires are answered 503. Once every server knows of
that, or grants nothing because it cannot read the records, the old store is asked once more. If nobody holds
or waits there, the directory lives at the new place from then on; else it stays and is tried again later.

Every server runs this. Each step is a compare-and-set on the list of placements, so two servers take no step
twice, and after a crash any server goes on from the record.
"""

from collections.abc import Mapping
from contextlib import suppress
from math import inf

from msgspec import structs

from dibs.core.names import KINDS, WAIT
from dibs.errors import BackendUnavailable, DibsError
from dibs.locks.requests import new_id
from dibs.model import Acquire, Granted, Inspect, Release
from dibs.server.audit import Audit
from dibs.server.background import LogOnce, repeat
from dibs.server.placement.markers import Markers
from dibs.server.placement.registry import (
    SERVICE,
    DirectoryRecords,
    Home,
    read_all,
    write_homes,
    write_list,
)
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.rules import Unsatisfiable, directory_shown, lives_in
from dibs.server.placement.table import FRESH_ALONE, settled_after
from dibs.server.records.port import Conflict, Records

SCANNED = 200
"""Keys that are read at a time."""

REST = 10.0
"""Seconds before a directory is frozen again that turned out to be in use."""

FROZEN = 30.0
"""Seconds that a directory stays frozen at most while a store it needs does not answer."""


class Drainer:
    """Takes the next step of each move. Every server has one."""

    def __init__(self, router: StoreRouter, records: Records, audit: Audit) -> None:
        self._router = router
        self._records = records
        self._audit = audit
        self._complaints = LogOnce()
        self._several_since = inf
        """Since when it has known that there are several placements, and that others may not."""
        self._frozen_since: dict[tuple[bytes, int], float] = {}
        """By directory and epoch."""
        self._rests: dict[bytes, float] = {}
        """When a directory that was in use may be frozen again."""

    async def run(self) -> None:
        """For ever."""
        await repeat(self._turn, self._router.reader.every, "moving directories")

    async def _turn(self) -> None:
        if not self._router.table.is_lone:
            await self.go_on()

    async def go_on(self) -> None:
        """Take the next step of each move that is wanted or under way."""
        found = await read_all(self._records)
        if not await self._is_known_to_all(found):
            return
        for directory in sorted(found.directories):
            about = f"moving {directory_shown(directory)}"
            try:
                home = found.homes.get(directory)
                if home is not None and home.to:
                    await self._finish(found, directory, home)
                else:
                    await self._begin(found, directory)
                self._complaints.clear(about)
            except Conflict:
                return  # another server was faster: look again
            except (DibsError, Unsatisfiable) as error:
                self._complaints.warn(about, str(error))

    async def _is_known_to_all(self, found: DirectoryRecords) -> bool:
        """Whether no server can believe any more that there is one placement only."""
        listing, here = found.listing, self._router.named
        if listing.places[0].name in here:
            with suppress(DibsError):  # it stands there for a month already
                first = await self._router.to(listing.places[0].name)
                await Markers(lambda: (first,)).put(listing.mark)
        if not listing.was_lone:
            return True
        self._several_since = min(self._several_since, self._router.now())
        if self._router.now() - self._several_since < settled_after(FRESH_ALONE):
            return False
        found.listing = structs.replace(listing, was_lone=False)
        try:
            await write_list(self._records, found.listing, found.version)
        except Conflict:
            return False
        found.version += 1
        return True

    async def _begin(self, found: DirectoryRecords, directory: bytes) -> None:
        """Freeze a directory that should live elsewhere, if it looks idle."""
        home, here = found.home_of(directory), self._router.named
        to = found.wanted(directory, here)
        if home.to or to == home.place or to not in here or home.place not in here:
            return
        if self._router.now() < self._rests.get(directory, 0.0):
            return
        stay = dict.fromkeys(found.staying(directory, to, here), home)
        homes = {**found.homes, **stay, directory: home}
        keys, _ = await self.in_use(homes, directory, home, 1)
        if keys:
            return
        await self._check_answers(to)
        await write_homes(self._records, found, {**homes, directory: home.frozen(to)})

    async def _finish(self, found: DirectoryRecords, directory: bytes, home: Home) -> None:
        """Have a frozen directory live at the new place if it is idle, else stay."""
        now = self._router.now()
        frozen = now - self._frozen_since.setdefault((directory, home.epoch), now)
        if frozen < settled_after(found.listing.fresh):
            return
        try:
            after = await self._arrived(found, directory, home)
        except (DibsError, Unsatisfiable):
            if frozen < FROZEN:
                raise
            after = home.thawed()
        homes = {**found.homes, directory: after}
        await write_homes(self._records, found, homes, "" if directory else after.place)
        self._frozen_since.pop((directory, home.epoch), None)
        if after.place == home.place:
            self._rests[directory] = now + REST
            return
        detail = {"from": home.place, "to": after.place}
        await self._audit.write(SERVICE, "move finished", directory, detail)

    async def _arrived(self, found: DirectoryRecords, directory: bytes, home: Home) -> Home:
        """Its home after the move, or where it is if it may not move. Raises `DibsError`."""
        for place in (home.place, home.to):
            await self._check_answers(place)
        keys, _ = await self.in_use(found.homes, directory, home, 1)
        if keys or found.wanted(directory, self._router.named) != home.to:
            return home.thawed()
        return home.moved(await self._token_at(home))

    async def _check_answers(self, place: str) -> None:
        """Raises `BackendUnavailable` if that store does not answer."""
        await (await self._router.to(place)).call(Inspect(WAIT + new_id().encode()))

    async def in_use(
        self, homes: Mapping[bytes, Home], directory: bytes, home: Home, most: int
    ) -> tuple[int, float]:
        """How many names of a directory are held or waited for, counted up to `most`.

        And in how many seconds the last of these leases ends. Raises `BackendUnavailable`.
        """
        runtime = await self._router.to(home.place)
        homes = {**homes, directory: home}
        keys, ends_in = 0, 0.0
        for kind in sorted(KINDS):
            cursor: bytes | None = None
            while True:
                page = await runtime.page(kind.encode() + b":" + directory, cursor, SCANNED)
                for status in page.items:
                    if lives_in(homes, status.name) == directory:
                        keys += 1
                        ends_in = max([ends_in, *(each.expires_in for each in status.holders)])
                        if keys == most:
                            return keys, ends_in
                cursor = page.cursor
                if cursor is None:
                    break
        return keys, ends_in

    async def _token_at(self, home: Home) -> int:
        """A token of the old place's clock: those of its names are at most `SLACK` ahead of it."""
        runtime = await self._router.to(home.place)
        key, probe_id = WAIT + new_id().encode(), new_id()
        wish = Acquire(key, probe_id, "the service", 1.0, floor=home.floor)
        reply = (await runtime.call(wish)).reply
        await runtime.call(Release(key, probe_id))
        if not isinstance(reply, Granted):
            raise BackendUnavailable(f"the store at {home.place} gave no token")
        return reply.token
