"""Deadlock detection: a waiter that holds something else looks for a circle of waiters that it is in.

While it waits, it takes a small lease of the kind `wait` for each lease that its task or thread holds: a
*wait record*. The key of a record is made of the fingerprint of the lease that is held, and its note says
what is waited for. So every waiter can follow a chain: from the key it waits for to the holders, from each
holder to its record, and on to the next key. If the chain leads back to a lease of its own, it is a circle.

A circle is read twice, and counts if both readings are the same: ids are used once, so all of it existed
between the two readings. The waiter that began last gives way (ADR 11). A wait costs nothing more unless the
waiter holds something and has waited for a second.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple
from weakref import ref

from dibs.core.names import fingerprint, wait_key
from dibs.errors import Deadlock
from dibs.locks.lease import give_up
from dibs.locks.messages import format_key
from dibs.locks.requests import AcquireRequest, new_id
from dibs.model import MANY, Acquire, Granted, Holder, Inspect, Status
from dibs.runtime.port import Runtime

FIRST_LOOK = 1.0
"""Seconds from the beginning of a wait to the first look for a circle; the next pauses are longer."""

MOST_READS = 200
"""Keys that one search reads at most: a circle of a hundred, or a crowd of readers."""

LEAST_TTL = 4.0
"""Seconds that a wait record lives at least, so that it outlives the pause between two looks."""


class Wait(NamedTuple):
    """The wait of a holder: for a key, at a position in its queue."""

    key: bytes
    units: int
    place: str
    """The fingerprint of its position in the queue."""


class WaitRecord(NamedTuple):
    """A wait, as it is written in the store."""

    lease: str
    """The fingerprint of the record's own id."""
    began: int
    """When the wait began, by the stamp that the store gave the record: the greatest is the last."""
    wait: Wait


def note_of(wait: Wait, began: int) -> str:
    """The note of a wait record. `began` may be negative: how long ago that was, in µs."""
    key = urlsafe_b64encode(wait.key).decode()
    return f"{wait.place} {wait.units} {began} {key}"


def record_in(status: Status) -> WaitRecord | None:
    """The wait record under a key, the newest if there are several."""
    for holder in reversed(status.holders):
        try:
            place, units, began, key = holder.note.split(" ")
            wait, stamp = Wait(urlsafe_b64decode(key), int(units), place), int(began)
        except ValueError:
            continue  # of another release than this
        return WaitRecord(holder.lease, stamp if stamp > 0 else holder.token + stamp, wait)
    return None


class ChainLink(NamedTuple):
    """A link of a chain: a holder of the key, and its own wait."""

    key: bytes
    hold: Holder
    record: WaitRecord

    @property
    def identity(self) -> tuple[str, WaitRecord]:
        """Fingerprints that must be the same in both readings."""
        return self.hold.lease, self.record

    @property
    def age(self) -> tuple[int, str]:
        """The greatest in a circle gives way."""
        return self.record.began, self.record.lease


def may_deadlock(rt: Runtime, request: AcquireRequest) -> bool:
    """Whether a waiter looks for circles, if it holds something."""
    return request.detects and rt.capabilities.circles


class DeadlockDetector:
    """The wait records of one wait, and its search for a circle. Call `look` at `due_at`, and `end`."""

    def __init__(self, rt: Runtime, request: AcquireRequest, since: float) -> None:
        self._rt = rt
        self._request = request
        self._since = since
        self.due_at: float = since + FIRST_LOOK
        """When to look next; `inf` if never."""
        self._pause = FIRST_LOOK
        self._held: list[ref[Any]] | None = None
        """What our task or thread holds. It cannot come to hold more while it waits."""
        self._ids: dict[str, str] = {}
        """Ids of our records, by the fingerprint of the lease that is held."""
        self._mine: dict[str, WaitRecord] = {}
        self._began: dict[str, int] = {}
        self._in_flight = False
        self._reads = 0

    async def look(self, place: str) -> None:
        """Look for a circle, from the position with that fingerprint.

        Raises `Deadlock` if this wait is in one and began last of all.
        """
        if self._held is None:
            self._held = [ref(lease) for lease in self._rt.holding.of(self._rt.me())]
        if not any(self._standing()):  # so nobody waits for us
            self.due_at = inf
            return
        self._pause = min(2 * self._pause, max(self._request.ttl / 2, FIRST_LOOK))
        try:
            await self._look(Wait(self._request.key, self._request.units, place))
        finally:
            self.due_at = self._rt.now() + self._pause

    async def _look(self, wait: Wait) -> None:
        if any(record.wait != wait for record in self._mine.values()):
            self.end()  # our position is another by now
        for lease in self._standing():
            await self._write_record(lease, wait)
        circle = await self._find(wait)
        if circle is None or max(circle, key=lambda link: link.age) is not circle[-1]:
            return
        again = await self._find(wait)
        if again is not None and [x.identity for x in again] == [x.identity for x in circle]:
            raise _deadlock(self._rt, self._request.key, again)

    def end(self) -> None:
        """Give up our wait records, in the background."""
        ids, self._ids, self._mine = self._ids, {}, {}
        for lease, own in ids.items():
            give_up(self._rt, wait_key(lease), own, self._in_flight)

    async def _write_record(self, lease: str, wait: Wait) -> None:
        """Take the record for a lease that is held, or renew it."""
        own = self._ids.setdefault(lease, new_id())
        waited = round((self._rt.now() - self._since) * 1e6)
        note = note_of(wait, self._began.get(lease, -waited))
        ttl = max(self._request.ttl, LEAST_TTL)
        record = Acquire(wait_key(lease), own, self._request.owner, ttl, capacity=MANY, note=note)
        self._in_flight = True
        reply = (await self._rt.call(record)).reply
        self._in_flight = False
        if isinstance(reply, Granted):
            began = self._began.setdefault(lease, reply.token - waited)
            self._mine[lease] = WaitRecord(fingerprint(own), began, wait)

    def _standing(self) -> Iterator[str]:
        """The fingerprints of what our task or thread holds."""
        for lease in self._held or ():
            held = lease()
            if held is not None and held._stands:
                yield fingerprint(held._id)

    async def _find(self, wait: Wait) -> tuple[ChainLink, ...] | None:
        """A circle that leads from this wait to a lease of ours."""
        self._reads = 0
        return await self._follow(wait, (), {wait.place})

    async def _follow(
        self, wait: Wait, path: tuple[ChainLink, ...], seen: set[str]
    ) -> tuple[ChainLink, ...] | None:
        status = await self._read(wait.key)
        for hold in _in_the_way(status, wait, is_ours=not path):
            own = self._mine.get(hold.lease)
            if own is not None and not path:
                continue  # a waiter that upgrades a lease is not in its own way
            record = own or record_in(await self._read(wait_key(hold.lease)))
            if record is None or (own is None and record.wait.place in seen):
                continue
            links = (*path, ChainLink(wait.key, hold, record))
            if own is not None:
                return links
            seen.add(record.wait.place)
            found = await self._follow(record.wait, links, seen)
            if found is not None:
                return found
        return None

    async def _read(self, key: bytes) -> Status:
        self._reads += 1
        if self._reads <= MOST_READS:
            status = (await self._rt.call(Inspect(key))).reply
            if isinstance(status, Status):
                return status
        return Status(key, 1)


def _in_the_way(status: Status, wait: Wait, *, is_ours: bool) -> list[Holder]:
    """The listed holders without whose leaving that position can't be granted.

    Others' positions count only if the store names them, because a record may outlive its wait.
    """
    all_named = status.waiting <= len(status.waiters)
    named = any(waiter.lease == wait.place for waiter in status.waiters)
    if not named and (all_named or not is_ours):
        return []  # it waits no more, or nobody can tell
    return [
        holder
        for holder in status.holders
        if holder.state in ("held", "unclaimed") and status.capacity - holder.units < wait.units
    ]


def _deadlock(rt: Runtime, key: bytes, circle: tuple[ChainLink, ...]) -> Deadlock:
    """The error for the waiter that gives way: who holds what, and waits for what."""
    holds = [link.hold for link in circle]
    alike = len({hold.owner for hold in holds}) < len(holds)
    names = rt.holding.names() if alike else {}
    waits = "; ".join(
        f"{link.hold.owner}{names.get(link.hold.lease, '')} holds {format_key(link.key)} and waits for "
        f"{format_key(link.record.wait.key)}"
        for link in (circle[-1], *circle[:-1])
    )
    return Deadlock(
        f"{waits}: none of these waits can end. Yours began last, so it was cancelled. Release what you hold "
        "and start again. To avoid this, acquire in the same order everywhere, as AllOf does. If another "
        "task or thread will release a lease, call lease.adopt() there",
        key=key,
        holders=tuple(holds),
    )
