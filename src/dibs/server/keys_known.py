"""All keys as one server knows them, looked up anew when a record has changed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Protocol

from dibs.clock import Clock
from dibs.core.names import printable
from dibs.errors import DibsError
from dibs.server import keys_document
from dibs.server.keys_document import KIND, Key
from dibs.server.records.port import Record, Records
from dibs.server.repeating import repeat

log = logging.getLogger("dibs.server")

REFRESH = 1.0
"""Seconds between two looks at the records: so soon after its revocation a key is of no use anywhere."""

BELIEVED = 60.0
"""Seconds after which no key is good, if neither the records nor the stores could be asked about keys."""

ASKED_AFTER = 20.0
"""Seconds without the records after which, and how often, the stores are asked for revoked keys."""

DISTANCE = 0.05
"""Seconds that lie between looks for keys that nobody knows, however many are brought."""

ALL_GONE = (
    "all keys are gone from the records, so everybody is refused: restore the records, or make new keys "
    "beside them with `dibs keys create`"
)
NONE_READ = (
    "none of the keys in the records can be read, so everybody is refused: a newer release has written "
    "them, so run that one"
)


class Markers(Protocol):
    """Markers that servers leave for each other in the stores: see `placing.markers`."""

    async def put(self, name: str) -> None:
        """Set a marker. Raises `BackendUnavailable`."""

    async def standing(self, names: Iterable[str]) -> set[str]:
        """Which of these stand. Raises `BackendUnavailable`."""


def marker_of(key: Key) -> str:
    """The marker of a revoked key: only the records, and the key itself, lead to its name."""
    return f"revoked-{sha256(b'dibs revoked ' + key.digest).hexdigest()[:32]}"


class KnownKeys:
    """Keys by their ids, and who wants to know when one of them ends."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self.changing = asyncio.Lock()
        """Held while records and what is known of them are brought together."""
        self._records = records
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self.get: Callable[[str], Key | None] = self._keys.get
        """The key of an id, also one that has ended."""
        self.on_change: list[Callable[[], Awaitable[None]]] = []
        """Called when anything in the records has changed."""
        self._revision = -1
        self._looked_at = 0.0
        self._heard_at = 0.0
        """When the records, or else the stores, were last asked about keys."""
        self.markers: Markers | None = None
        """Where revocations are left for servers that cannot read the records."""
        self._signed: set[str] = set()
        """Revoked keys that have a marker."""
        self._task: asyncio.Task[None] | None = None
        self._next_look: asyncio.Task[None] | None = None
        """One that has not begun yet."""
        self._watchers: dict[str, list[Callable[[], None]]] = {}
        self._complained: set[tuple[str, int]] = set()

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._keys.values()))

    # -- a life -------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Learn all keys, and from now on what becomes of them."""
        await self.refresh()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_fresh(), name="dibs keys")

    async def close(self) -> None:
        """Look no more."""
        tasks = [task for task in (self._task, self._next_look) if task is not None]
        self._task = self._next_look = None
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @property
    def stale_for(self) -> float:
        """Seconds since the records could last be read: a revocation elsewhere may be that old."""
        return self._clock.now() - self._looked_at

    async def refresh(self) -> None:
        """Learn what has changed, if anything has."""
        async with self.changing:
            asked, known = self._clock.now(), self._revision
            self._revision = -1  # after an outage nothing is taken for granted: a failover may have
            revision = await self._records.revision()  # counted anew
            if revision != known:
                self._take(await self._records.all(KIND))
                for each in self.on_change:
                    await each()
            self._revision = revision
            self._looked_at, self._heard_at = asked, max(self._heard_at, asked)

    @property
    def is_current(self) -> bool:
        """Whether it was asked lately enough which keys are good."""
        return self._clock.now() - self._heard_at < BELIEVED

    async def catch_up(self) -> None:
        """Have a look that begins from now on: another server may just have made a key.

        Those who ask meanwhile share it. While the records are away, it finds nothing.
        """
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_soon(), name="dibs keys, once")
        await asyncio.shield(self._next_look)

    async def _look_soon(self) -> None:
        await asyncio.sleep(DISTANCE)
        self._next_look = None
        with suppress(DibsError):
            await self.refresh()

    async def _keep_fresh(self) -> None:
        trouble = "keys can't be looked up, so they stay as they were known"
        unsigned = "a store cannot be told which keys are revoked"
        unasked = "a store cannot be asked which keys are revoked"
        await asyncio.gather(  # each by itself: records that hang keep nothing else
            repeat(self.refresh, REFRESH, trouble),
            repeat(self._ask_if_silent, REFRESH, unasked),
            repeat(self.leave_markers, REFRESH, unsigned),
            repeat(self._tell_watchers, REFRESH, "streams of ended keys cannot be ended"),
        )

    async def _tell_watchers(self) -> None:
        self.tell_watchers()

    async def leave_markers(self) -> None:
        """Have servers that cannot read the records hear of revoked keys. Raises `BackendUnavailable`."""
        markers = self.markers
        if markers is None:
            return
        revoked = [key for key in self if key.revoked is not None and key.id not in self._signed]
        puts = (markers.put(marker_of(key)) for key in revoked)
        told = await asyncio.gather(*puts, return_exceptions=True)
        for key, error in zip(revoked, told, strict=True):
            if error is None:
                self._signed.add(key.id)
        for error in filter(None, told):
            raise error

    async def _ask_if_silent(self) -> None:
        """The records are away: another server may have left word of keys that were revoked since."""
        asked = self._clock.now()
        if self.markers is None or asked - self._heard_at <= ASKED_AFTER:
            return
        by_marker = {marker_of(key): key for key in self if key.revoked is None}
        found = await self.markers.standing(by_marker)
        now = self._clock.stamp() / 1e6
        for marker in found:
            key = by_marker[marker]
            self._keys[key.id] = replace(key.as_revoked(now), version=-1)  # to be read again
        self._heard_at = max(self._heard_at, asked)

    def _take(self, records: Sequence[Record]) -> None:
        known = {key.id: key for record in records if (key := self._read_anew(record)) is not None}
        now = self._clock.stamp() / 1e6
        if not known and any(not key.ended(now) for key in self):  # nobody removes one that is good
            log.error(NONE_READ if records else ALL_GONE)
        self._keys.clear()
        self._keys.update(known)
        self.tell_watchers()

    def _read_anew(self, record: Record) -> Key | None:
        """A key; one that has not changed is not decoded again."""
        known = self._keys.get(record.name)
        same = known is not None and known.version == record.version
        return known if same else self.read(record)

    def read(self, record: Record) -> Key | None:
        """A record that can't be read lets nobody in, and costs no other key anything."""
        try:
            return keys_document.from_record(record)
        except ValueError as error:
            if (record.name, record.version) not in self._complained:
                self._complained.add((record.name, record.version))
                log.error("key %s can't be read: %s", printable(record.name), error)
            return None

    # -- changes of our own -------------------------------------------------------------------------

    async def put(self, key: Key) -> Key:
        """Write a key. Raises `Conflict`. To be called while `changing` is held, like `remove`."""
        record = await self._records.put(KIND, key.id, keys_document.to_bytes(key), key.version)
        key = self._keys[key.id] = keys_document.from_record(record)
        self._revision = -1  # should the records forget it now, they may count as they did before
        self.tell_watchers()
        return key

    async def remove(self, key: Key) -> None:
        """Forget a key. Raises `Conflict`."""
        await self._records.delete(KIND, key.id, key.version)
        self._keys.pop(key.id, None)

    # -- who wants to know --------------------------------------------------------------------------

    def watch(self, key_id: str, ended: Callable[[], None]) -> Callable[[], None]:
        """Have `ended` called once, in the loop, when that key is good no more: for what lasts long.

        What is returned takes that back.
        """
        self._watchers.setdefault(key_id, []).append(ended)

        def forget() -> None:
            watchers = self._watchers.get(key_id, [])
            if ended in watchers:
                watchers.remove(ended)
            if not watchers:
                self._watchers.pop(key_id, None)

        return forget

    def tell_watchers(self) -> None:
        """Call those whose keys have ended."""
        now = self._clock.stamp() / 1e6
        for key_id in list(self._watchers):
            key = self._keys.get(key_id)
            if key is None or key.ended(now) or not self.is_current:
                for ended in self._watchers.pop(key_id, ()):
                    ended()
