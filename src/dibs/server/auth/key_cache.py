"""All API keys in memory: authentication costs a dict lookup and a hash, and works without the records."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Protocol

from msgspec.structs import replace

from dibs.clock import Clock
from dibs.core.names import printable
from dibs.errors import DibsError
from dibs.server.auth.api_key import KIND, StoredKey, read_key, write_key
from dibs.server.background import Callback, Watchers, repeat
from dibs.server.records.port import Record, Records

log: logging.Logger = logging.getLogger("dibs.server")

REFRESH = 1.0
"""Seconds between two reads of the records. A revoked key stops working everywhere within this time."""

MAX_AGE = 60.0
"""Seconds after which no key is accepted if neither the records nor the stores could be read."""

ASKED_AFTER = 20.0
"""Seconds without the records after which the stores are asked for revoked keys, and how often."""

MIN_LOOKUP_INTERVAL = 0.05
"""Seconds between lookups of unknown keys, however many are sent."""

ALL_GONE = (
    "all keys are gone from the records, so everybody is refused: restore the records, or make new keys "
    "beside them with `dibs keys create`"
)
NONE_READ = (
    "none of the keys in the records can be read, so everybody is refused: a newer release has written "
    "them, so run that one"
)


class RevocationMarkers(Protocol):
    """Markers that servers leave for each other in the stores: see `placement.markers`."""

    async def put(self, name: str) -> None:
        """Set a marker. Raises `BackendUnavailable`."""

    async def standing(self, names: Iterable[str]) -> set[str]:
        """Return those of the names that are set as markers. Raises `BackendUnavailable`."""


def marker_of(key: StoredKey) -> str:
    """The marker of a revoked key. Its name can only be found with the records or the key itself."""
    return f"revoked-{sha256(b'dibs revoked ' + key.digest).hexdigest()[:32]}"


class KeyCache:
    """Keys by their ids, read again when a record has changed. One event loop uses it."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self.changing: asyncio.Lock = asyncio.Lock()
        """Held while the records and the keys in memory are brought together."""
        self.markers: RevocationMarkers | None = None
        """Where revocations are left for servers that cannot read the records."""
        self._records = records
        self._clock = clock
        self._keys: dict[str, StoredKey] = {}
        self.get: Callable[[str], StoredKey | None] = self._keys.get
        """The key of an id, also one that has ended."""
        self._revision = -1
        self._read_at = 0.0
        """When the records were last read."""
        self._confirmed_at = 0.0
        """When the records, or else the stores, were last asked about keys."""
        self._marked: set[str] = set()
        """Revoked keys that have a marker."""
        self._on_change: list[Callable[[], Awaitable[None]]] = []
        self._watchers = Watchers[str]()
        """Callbacks by key id."""
        self._unreadable: set[tuple[str, int]] = set()
        """Records that were logged as unreadable."""
        self._task: asyncio.Task[None] | None = None
        self._next_look: asyncio.Task[None] | None = None
        """A look that has not begun yet."""

    def __iter__(self) -> Iterator[StoredKey]:
        return iter(list(self._keys.values()))

    def now(self) -> float:
        """Seconds since 1970, as all times of keys."""
        return self._clock.stamp() / 1e6

    @property
    def stale_for(self) -> float:
        """Seconds since the records were last read. A revocation elsewhere can be that old."""
        return self._clock.now() - self._read_at

    @property
    def is_current(self) -> bool:
        """Whether the records or the stores were asked within `MAX_AGE`. Else no key is accepted."""
        return self._clock.now() - self._confirmed_at < MAX_AGE

    # -- reading ------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all keys, and follow changes until `close`."""
        await self.refresh()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="dibs keys")

    async def close(self) -> None:
        """Follow changes no more."""
        tasks = [task for task in (self._task, self._next_look) if task is not None]
        self._task = self._next_look = None
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _work(self) -> None:
        unread = "keys can't be looked up, so they stay as they were known"
        unmarked = "a store cannot be told which keys are revoked"
        unasked = "a store cannot be asked which keys are revoked"
        await asyncio.gather(  # each by itself, so that records that hang delay nothing else
            repeat(self.refresh, REFRESH, unread),
            repeat(self._read_markers, REFRESH, unasked),
            repeat(self.leave_markers, REFRESH, unmarked),
            repeat(self._end_watches, REFRESH, "streams of ended keys cannot be ended"),
        )

    async def refresh(self) -> None:
        """Read all keys if any record has changed. Raises `BackendUnavailable`."""
        async with self.changing:
            began, known = self._clock.now(), self._revision
            self._revision = -1  # if this fails, read all: a failover may have lost changes
            revision = await self._records.revision()
            if revision != known:
                self._take(await self._records.all(KIND))
                await self._end_watches()
                for each in self._on_change:
                    await each()
            self._revision = revision
            self._read_at, self._confirmed_at = began, max(self._confirmed_at, began)

    async def on_change(self, read: Callable[[], Awaitable[None]]) -> None:
        """Call `read` now, and whenever any record has changed."""
        await read()
        self._on_change.append(read)

    async def catch_up(self) -> None:
        """Wait for a look that begins from now on, as another server may just have created a key.

        Concurrent callers share it. It ignores errors of the records.
        """
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_soon(), name="dibs keys, once")
        await asyncio.shield(self._next_look)

    async def _look_soon(self) -> None:
        await asyncio.sleep(MIN_LOOKUP_INTERVAL)
        self._next_look = None
        with suppress(DibsError):
            await self.refresh()

    def _take(self, records: Sequence[Record]) -> None:
        found = {}
        for record in records:
            key = self._keys.get(record.name)
            if key is None or key.version != record.version:
                key = self.read(record)
            if key is not None:
                found[key.id] = key
        now = self.now()
        if not found and any(not key.ended(now) for key in self):  # valid keys are never removed
            log.error(NONE_READ if records else ALL_GONE)
        self._keys.clear()
        self._keys.update(found)

    def read(self, record: Record) -> StoredKey | None:
        """The key in a record. An unreadable one is logged once; other keys go on working."""
        try:
            return read_key(record)
        except ValueError as error:
            if (record.name, record.version) not in self._unreadable:
                self._unreadable.add((record.name, record.version))
                log.error("key %s can't be read: %s", printable(record.name), error)
            return None

    # -- writing ------------------------------------------------------------------------------------

    async def put(self, key: StoredKey) -> StoredKey:
        """Write a key. Raises `Conflict`. The caller holds `changing`."""
        record = await self._records.put(KIND, key.id, write_key(key), key.version)
        key = self._keys[key.id] = read_key(record)
        self._revision = -1  # if a failover loses this change, the revision can be as before
        await self._end_watches()
        return key

    async def remove(self, key: StoredKey) -> None:
        """Delete a key. Raises `Conflict`. The caller holds `changing`."""
        await self._records.delete(KIND, key.id, key.version)
        self._keys.pop(key.id, None)

    # -- markers of revoked keys --------------------------------------------------------------------

    async def leave_markers(self) -> None:
        """Mark revoked keys in the stores. Raises `BackendUnavailable`; the others are marked then."""
        markers = self.markers
        if markers is None:
            return
        revoked = [key for key in self if key.revoked is not None and key.id not in self._marked]
        puts = (markers.put(marker_of(key)) for key in revoked)
        errors = await asyncio.gather(*puts, return_exceptions=True)
        for key, error in zip(revoked, errors, strict=True):
            if error is None:
                self._marked.add(key.id)
        for error in filter(None, errors):
            raise error

    async def _read_markers(self) -> None:
        """Look for keys that other servers have revoked, if the records cannot be read."""
        began = self._clock.now()
        if self.markers is None or began - self._confirmed_at <= ASKED_AFTER:
            return
        by_marker = {marker_of(key): key for key in self if key.revoked is None}
        for marker in await self.markers.standing(by_marker):
            key = by_marker[marker]
            # no record has this version, so the key is read again later
            self._keys[key.id] = replace(key, revoked=self.now(), version=-1)
        self._confirmed_at = max(self._confirmed_at, began)

    # -- watching -----------------------------------------------------------------------------------

    def watch(self, key_id: str, ended: Callback) -> Callback:
        """Call `ended` once, in the loop, when that key is not valid any more.

        Returns a function that takes this back.
        """
        return self._watchers.add(key_id, ended)

    async def _end_watches(self) -> None:
        """Call the watchers of keys that have ended."""
        now = self.now()
        for key_id in self._watchers:
            key = self._keys.get(key_id)
            if key is None or key.ended(now) or not self.is_current:
                self._watchers.call(key_id)
