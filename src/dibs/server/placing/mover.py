"""The mover: takes the steps of moves, one after the other, by compare-and-set.

Any server may be it, while it has a lease of ours; that only saves work. A step is safe whoever takes it, and
however late: it is written only if the record is what it was when the mover looked, and what was true of
the old place then stays true. After a crash the next mover goes on from the record.
"""

import time
from hashlib import sha256

from dibs.core.names import shown
from dibs.errors import Corrupt, DibsError
from dibs.model import Acquire, Granted, Release, Renew, Status
from dibs.primitives.ids import new_id
from dibs.server.audit import Audit, What
from dibs.server.placing.choice import Unsatisfiable, directory_shown, overlap
from dibs.server.placing.clerk import Clerk
from dibs.server.placing.documents import HOME, Documents, read_all
from dibs.server.placing.guards import STANDS
from dibs.server.placing.home import Home
from dibs.server.placing.parting import part, put_home, write_out
from dibs.server.placing.progress import Standing, is_waited_for, standing
from dibs.server.placing.runtime import PlacedRuntime
from dibs.server.placing.table import Table, settled_after
from dibs.server.principal import Principal
from dibs.server.reach import HEADS
from dibs.server.records.port import Conflict, Records
from dibs.server.repeating import Complaints, repeat

LEASE = 5.0
"""How long whoever is the mover stays it, unless it goes on."""

SCANNED = 200

SERVICE = Principal("", "the service", frozenset(), ())
"""Who takes the steps of a move, in the audit."""


class Mover:
    """One server's."""

    def __init__(
        self,
        placed: PlacedRuntime,
        records: Records,
        audit: Audit,
        *,
        probe: bytes,
        every: float = 0.5,
    ) -> None:
        self._placed = placed
        self._records = records
        self._audit = audit
        self._every = every
        self._id = new_id()
        self._probe = probe
        self._complaints = Complaints()
        self._seen: dict[tuple[bytes, int], float] = {}
        """Since when this mover has known of each version of a home."""
        self._clerk = Clerk(records, placed.now)

    async def run(self) -> None:
        """For ever."""
        await repeat(self._turn, self._every, "moving directories")

    async def _turn(self) -> None:
        """Where there is one placement there is nothing to do, and nobody has to be the mover."""
        if not self._placed.atlas.table.is_lone and await self._is_it():
            await self.go_on()

    async def _is_it(self) -> bool:
        """Whether this server is the mover, among those that can reach the same stores."""
        runtime = await self._placed.ways.to(self._default.place)
        names = "\n".join(sorted(self._placed.ways.named)).encode()
        key = b"%b.mover.%b" % (self._probe, sha256(names).hexdigest()[:16].encode())
        wish = Acquire(key, self._id, "the mover", LEASE)
        return isinstance((await runtime.call(wish)).reply, Granted)

    async def go_on(self) -> None:
        """Begin what is to be begun, and take the next step of each move that is under way."""
        found = await read_all(self._records)
        if not await self._clerk.is_known_to_all(found.listing):
            return
        await self._clerk.settle_default(found)
        for directory in sorted(found.directories):
            about = f"moving {directory_shown(directory)}"
            try:
                home = found.homes.get(directory)
                if home is not None and home.phase != "settled":
                    await self._step(found, directory, home)
                else:
                    await self._begin(found, directory)
                self._complaints.settle(about)
            except Conflict:
                pass  # another one was faster
            except (DibsError, Unsatisfiable) as error:
                self._complaints.tell(about, str(error))

    # -- steps --------------------------------------------------------------------------------------

    async def _begin(self, found: Documents, directory: bytes) -> None:
        """Have it move, if it should live elsewhere and nothing around it or within it moves.

        What lives in the same home and is to stay, or to go elsewhere, parts from it first.
        """
        home, here = found.home_of(directory), self._placed.ways.named
        to = found.wanted(directory, here)
        if to not in here or home.place not in here:
            return
        active = (each for each, of in found.homes.items() if of.phase != "settled")
        if to == home.place or any(overlap(directory, each) for each in active):
            return
        if found.lives_in(directory) != directory:
            await part(self._records, found, [directory])
        await write_out(self._records, found, directory)
        await part(self._records, found, found.staying(directory, to, here))
        await self._write(found, directory, home.begun(to, time.time()), "move started")

    async def _step(self, found: Documents, directory: bytes, home: Home) -> None:
        """The next step, once every server knows of the one before.

        While it moves nobody has to know: the old place's own ledger decides who has a key.
        """
        version = found.versions[HOME, directory]
        now = self._placed.now()
        since = self._seen.setdefault((directory, version), now)
        wait = settled_after(found.listing.fresh)
        if home.phase != "moving" and now - since < wait:
            return
        if not {*home.places, home.clearing or home.place} <= self._placed.ways.named.keys():
            return  # another server can
        if home.phase == "clearing":
            if not await self._take_guards_away(found, directory, home):
                return
            await self._write(found, directory, home.cleared(time.time()), "move finished")
        else:
            seen = await self.look(found.homes, directory, home)
            await self._prolong(home, home.place, seen)
            if seen.is_over:
                after = home.seal(time.time())
                if home.sealed:
                    after = await self._arrived(home, seen)
                await self._write(found, directory, after, "move phase")
        self._seen.pop((directory, version), None)

    async def _arrived(self, home: Home, seen: Standing) -> Home:
        """The last step; raises `Corrupt` where the new place could give no greater tokens."""
        probed = await self._token_at(home)
        try:
            return home.arrived(max(seen.last_token, probed), time.time())
        except Corrupt as error:
            if home.is_at_the_top or seen.last_token <= probed:
                raise  # that is no name's fault
            raise Corrupt(
                f"{home.place}, {shown(seen.last_key)}: {error}; as no clock gives such tokens, somebody "
                "who uses that store directly has asked for them. It is not finished, and other names go "
                "on: have that name removed from that store by hand"
            ) from None

    async def _write(self, found: Documents, directory: bytes, home: Home, what: What) -> None:
        """Take a step. Raises `Conflict`."""
        await put_home(self._records, found, directory, home)
        detail = {"place": home.place, "to": home.to, "phase": home.phase}
        await self._audit.write(SERVICE, what, directory, detail)

    # -- what stands at the old place ---------------------------------------------------------------

    async def look(self, homes: dict[bytes, Home], directory: bytes, home: Home) -> Standing:
        """What stands at the place that is being left. Raises `BackendUnavailable`."""
        found = await self._found(home.place, homes, directory)
        return standing(found, home.epoch, self._placed.guards)

    async def _found(self, place: str, homes: dict[bytes, Home], directory: bytes) -> list[Status]:
        """All keys in use of a directory at a place."""
        runtime = await self._placed.ways.to(place)
        table = Table(self._placed.atlas.table.listing, homes)
        found: list[Status] = []
        for head in HEADS:
            cursor: bytes | None = None
            while True:
                page = await runtime.backend.scan(head + directory, cursor, SCANNED)
                found += (each for each in page.items if table.owns(directory, each.key))
                cursor = page.cursor
                if cursor is None:
                    break
        return found

    async def _prolong(self, home: Home, place: str, seen: Standing) -> None:
        """Guards stand as long as the move lasts."""
        runtime = await self._placed.ways.to(place)
        for status in seen.fading:
            for guard_id in self._guards_of(status.key, home):
                await runtime.call(Renew(status.key, guard_id, STANDS))

    async def _take_guards_away(self, found: Documents, directory: bytes, home: Home) -> bool:
        """But for those that somebody waits behind; whether none is left.

        Who waits there has not heard of the move, and nor has its server, perhaps: it would be granted what
        lives elsewhere. Its place ends when it has been silent for long.
        """
        place, guards = home.clearing, self._placed.guards
        runtime = await self._placed.ways.to(place)
        kept: list[Status] = []
        for status in await self._found(place, found.homes, directory):
            if is_waited_for(status, home.epoch, guards):
                kept.append(status)
                continue
            for guard_id in self._guards_of(status.key, home):
                await runtime.call(Release(status.key, guard_id))
        await self._prolong(home, place, standing(kept, home.epoch, guards))
        return not kept

    def _guards_of(self, key: bytes, home: Home) -> tuple[str, str]:
        guards = self._placed.guards
        return guards.id_of(key, home.epoch, "guard"), guards.id_of(key, home.epoch, "wall")

    async def _token_at(self, home: Home) -> int:
        """A token of the old place's clock, above all that it gives by that."""
        runtime = await self._placed.ways.to(home.place)
        key, probe_id = self._probe + b".probe", new_id()
        reply = (
            await runtime.call(Acquire(key, probe_id, "the mover", 1.0, floor=home.floor))
        ).reply
        await runtime.call(Release(key, probe_id))
        if not isinstance(reply, Granted):  # another mover's, for a moment
            raise Conflict("the probe")
        return reply.token

    @property
    def _default(self) -> Home:
        return self._placed.atlas.table.default
