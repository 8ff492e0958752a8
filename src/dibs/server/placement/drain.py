"""Drains directories that should live in another store, and moves them.

A directory that should live elsewhere *drains*: new acquires in it are answered 503, and its holders go on.
Once every server knows of that, or grants nothing because it cannot read the records, and nobody holds or
waits in the old store, the directory lives in the new one. At the deadline of the move, the holders that
remain are revoked: their units stay taken until their ttl ends. Without a deadline, a directory drains only
while it looks idle, and stays where it is if it is not.

Every server runs this. Each step is a compare-and-set on the list of placements, so two servers take no step
twice, and after a crash any server goes on from the record.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from itertools import batched
from math import inf

from msgspec import structs

from dibs.core.names import KINDS, WAIT
from dibs.errors import BackendUnavailable, DibsError
from dibs.locks.requests import new_id
from dibs.model import Acquire, Granted, Inspect, Release, Revoke, Status
from dibs.server.audit import Audit
from dibs.server.background import LogOnce, repeat
from dibs.server.placement.markers import Markers
from dibs.server.placement.registry import (
    SERVICE,
    DirectoryRecords,
    Home,
    read_all,
    record_name,
    write_list,
)
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.rules import Unsatisfiable, directory_shown, lives_in
from dibs.server.placement.table import FRESH_ALONE, settled_after
from dibs.server.records.port import Conflict, Records

SCANNED = 200
"""Keys that are read at a time."""

REST = 10.0
"""Seconds before a directory drains again that had to stay."""

PATIENCE = 30.0
"""Seconds that a directory goes on to drain while a store it needs does not answer."""


class Drainer:
    """Takes the next step of each move. Every server has one."""

    def __init__(self, router: StoreRouter, records: Records, audit: Audit) -> None:
        self._router = router
        self._records = records
        self._audit = audit
        self._complaints = LogOnce()
        self._several_since = inf
        """Since when it has known that there are several placements, and that others may not."""
        self._seen_since: dict[tuple[bytes, int], float] = {}
        """When it first saw that a directory drains, by directory and epoch."""
        self._failing_since: dict[bytes, float] = {}
        """Since when a store that a directory's move needs has not answered."""
        self._rests: dict[bytes, float] = {}
        """When a directory that had to stay can drain again."""

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
                    await self._continue(found, directory, home)
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
        """Drain a directory that should live elsewhere."""
        home, here = found.home_of(directory), self._router.named
        to = found.wanted(directory, here)
        if home.to or to == home.place or to not in here or home.place not in here:
            return
        if self._router.now() < self._rests.get(directory, 0.0):
            return
        stay = dict.fromkeys(found.staying(directory, to, here), home)
        homes = {**found.homes, **stay, directory: home}
        if found.deadline_of(directory, to).seconds is None:
            keys, _ = await self.in_use(homes, directory, home, 1)
            if keys:
                return
        await self._check_answers(home.place)
        await self._check_answers(to)
        homes[directory] = home.draining(to, self._wall())
        await write_homes(self._records, found, homes)

    async def _continue(self, found: DirectoryRecords, directory: bytes, home: Home) -> None:
        """Take the next step of a directory that drains."""
        now = self._router.now()
        try:
            after = await self._next_home(found, directory, home)
        except (DibsError, Unsatisfiable):
            if now - self._failing_since.setdefault(directory, now) < PATIENCE:
                raise
            after = home.staying()
        self._failing_since.pop(directory, None)
        if after == home:
            return
        homes = {**found.homes, directory: after}
        default = "" if directory or after.to else after.place
        await write_homes(self._records, found, homes, default)
        if after.is_overdue:
            await self._audit.write(SERVICE, "move deadline", directory, {"to": after.to})
            return
        self._seen_since.pop((directory, home.epoch), None)
        if after.place == home.place:
            self._rests[directory] = now + REST
            return
        detail = {"from": home.place, "to": after.place}
        await self._audit.write(SERVICE, "move finished", directory, detail)

    async def _next_home(self, found: DirectoryRecords, directory: bytes, home: Home) -> Home:
        """The home after the next step; the same while it waits. Raises `DibsError`, `Unsatisfiable`."""
        here = self._router.named
        if found.wanted(directory, {*here, home.to}) != home.to:
            return home.staying()
        if home.place not in here or home.to not in here:
            return home  # a server that can reach both stores goes on
        now = self._router.now()
        seen_for = now - self._seen_since.setdefault((directory, home.epoch), now)
        for place in (home.place, home.to):
            await self._check_answers(place)
        if seen_for < settled_after(found.listing.fresh):
            return home
        deadline = found.deadline_of(directory, home.to)
        if home.is_overdue:
            keys = await self._revoke_holders(found, directory, home)
        else:
            keys, _ = await self.in_use(found.homes, directory, home, 1)
        if not keys:
            return home.moved(await self._token_at(home))
        if home.is_overdue:
            return home
        if deadline.seconds is None:
            return home.staying()
        return home.overdue() if self._wall() >= deadline.after(home.since) else home

    async def _revoke_holders(self, found: DirectoryRecords, directory: bytes, home: Home) -> int:
        """Revoke the leases in a directory; return how many of its names have any, revoked or not.

        Waiters do not count, as no server acknowledges what they are granted. Nor do retained units, which
        nobody holds. Raises `BackendUnavailable`.
        """
        keys, revokes = 0, list[Revoke]()
        why = f"its directory moves to the placement {home.to}"
        async for status in self._keys_of(found.homes, directory, home):
            states = {each.state for each in status.holders}
            has_more = status.holding > len(status.holders)
            if has_more or states - {"retained"}:
                keys += 1
            if has_more or states & {"held", "unclaimed"}:
                revokes.append(Revoke(status.key, None, why))
        store = await self._router.to(home.place)
        for some in batched(revokes, SCANNED):
            await store.call_all(some)  # what fails is revoked by the next look
        return keys

    async def _check_answers(self, place: str) -> None:
        """Raises `BackendUnavailable` if that store does not answer."""
        await (await self._router.to(place)).call(Inspect(WAIT + new_id().encode()))

    async def in_use(
        self, homes: Mapping[bytes, Home], directory: bytes, home: Home, most: int
    ) -> tuple[int, float]:
        """How many names of a directory are held or waited for, counted up to `most`.

        And in how many seconds the last of these leases ends. Raises `BackendUnavailable`.
        """
        keys, ends_in = 0, 0.0
        async for status in self._keys_of(homes, directory, home):
            keys += 1
            ends_in = max([ends_in, *(each.expires_in for each in status.holders)])
            if keys == most:
                break
        return keys, ends_in

    async def _keys_of(
        self, homes: Mapping[bytes, Home], directory: bytes, home: Home
    ) -> AsyncIterator[Status]:
        """The keys in use that live in a directory. Raises `BackendUnavailable`."""
        store = await self._router.to(home.place)
        homes = {**homes, directory: home}
        for kind in sorted(KINDS):
            cursor: bytes | None = None
            while True:
                page = await store.page(kind.encode() + b":" + directory, cursor, SCANNED)
                for status in page.items:
                    if lives_in(homes, status.name) == directory:
                        yield status
                cursor = page.cursor
                if cursor is None:
                    break

    async def _token_at(self, home: Home) -> int:
        """A token of the old store's clock: those of its names are at most `SLACK` ahead of it."""
        store = await self._router.to(home.place)
        key, probe_id = WAIT + new_id().encode(), new_id()
        wish = Acquire(key, probe_id, "the service", 1.0, floor=home.floor)
        reply = (await store.call(wish)).reply
        await store.call(Release(key, probe_id))
        if not isinstance(reply, Granted):
            raise BackendUnavailable(f"the store at {home.place} gave no token")
        return reply.token

    def _wall(self) -> float:
        """Seconds since 1970. Deadlines go by it, and nothing that exclusion depends on."""
        return self._router.stamp() / 1e6


async def write_homes(
    records: Records, found: DirectoryRecords, homes: dict[bytes, Home], default: str = ""
) -> None:
    """Write all homes by compare-and-set, and keep `found` up to date. Raises `Conflict`."""
    by_name = {record_name(each): home for each, home in homes.items()}
    default = default or found.listing.default
    listing = structs.replace(found.listing, homes=by_name, default=default)
    await write_list(records, listing, found.version)
    found.listing, found.homes, found.version = listing, homes, found.version + 1
