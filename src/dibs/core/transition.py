"""A command applied to a key: expiry and grants first, and the steps that several rules share."""

from itertools import islice, takewhile
from math import inf
from typing import Literal

from dibs.core.book import Book, Entry, Hold, QueueEntry, Tombstone, first_release
from dibs.core.names import fingerprint
from dibs.core.proof import proof_of
from dibs.core.timing import (
    EXAMINED_POSITIONS,
    HEARTBEAT_POSITIONS,
    STEPS,
    TOMBSTONE_TTL,
    claim_timeout,
    heartbeat_interval,
    next_token,
)
from dibs.model import MAX_HOLDERS, MAX_SLOTS, Event, Granted, Notification, Queued, Refused

type Reason = Literal["released", "unclaimed", "too_large", "revoked"]

_ENDS_ITS_ID: dict[str, Reason] = {"unclaimed": "unclaimed", "revoked": "revoked"}
"""A hold that expires in one of these states leaves a tombstone: its owner may not know, and ask again."""


class Transition:
    """A command applied to a key: its book, the time, and the notifications to send."""

    __slots__ = ("book", "caller", "key", "notifications", "now", "stamp", "steps", "units_free_in")

    def __init__(
        self, book: Book, key: bytes, now: float, stamp: int, caller: str | None = None
    ) -> None:
        self.book: Book = book
        self.key: bytes = key
        self.now: float = now
        self.stamp: int = stamp
        self.caller: str | None = caller
        """The id of the command. It gets a reply, so it needs no notification."""
        self.units_free_in: float = inf
        """Seconds until time frees units that this command granted, perhaps to a dead waiter, or retained."""
        self.steps: int = STEPS
        """How many entries this command may still expire, and waiters grant or refuse."""
        self.notifications: list[Notification] = []

    # -- settling: what has expired, and who is next ------------------------------------------------------

    def settle(self) -> None:
        """Expire entries, then grant the head of the queue while it fits, within `STEPS`.

        Later commands do the rest. Until then an expired hold keeps its units taken, and an expired waiter
        is passed over. The caller's own entry always expires in time.
        """
        book = self.book
        if self.steps:
            for entry in book.ended(self.now, self.steps):
                self._expire(entry)
                self.steps -= 1
        if not self.steps and self.caller is not None:
            own = book.get(self.caller)
            if own is not None and book.expires_at(own) <= self.now:
                self._expire(own)
        while self.steps and book.waiting and self._grant_next():
            self.steps -= 1

    def _expire(self, entry: Entry) -> None:
        """Expire an entry. What follows counts from its expiry, not from now."""
        late = self.now - self.book.expires_at(entry)
        if isinstance(entry, Hold):
            if entry.state == "unclaimed":
                self.book.doubt = max(self.book.doubt, entry.token)
            if entry.state != "retained" and entry.lock_delay > late:
                self.units_free_in = min(self.units_free_in, entry.lock_delay - late)
                tombstone = TOMBSTONE_TTL if entry.state in _ENDS_ITS_ID else 0.0
                return self.retain(entry, entry.lock_delay - late, tombstone)
            tombstone = TOMBSTONE_TTL if entry.state in _ENDS_ITS_ID else entry.tombstone
            if tombstone > late:
                reason = _ENDS_ITS_ID.get(entry.state, "released")
                return self.set_tombstone(entry.id, tombstone - late, reason, entry.detail)
        self.book.remove(entry)

    def _grant_next(self) -> bool:
        """Grant the first waiter that is not passed over, if it fits. True: look again for the next."""
        book = self.book
        for waiter in islice(book.queue(), EXAMINED_POSITIONS):
            if waiter.units > book.capacity:
                self._refuse_for_good(waiter)
                return True
            if self._is_full(1):
                return False
            if self._is_passed_over(waiter):
                continue
            if book.used + waiter.units > book.capacity:
                return False
            self._grant_waiter(waiter)
            return True
        return False

    def _is_passed_over(self, waiter: QueueEntry) -> bool:
        """True if it missed a heartbeat, or sent none since a grant that nobody claimed."""
        return self._missed_heartbeat(waiter) or waiter.seen < self.book.doubt

    def _missed_heartbeat(self, waiter: QueueEntry) -> bool:
        """True if its heartbeat is overdue, or it has expired."""
        expires = self.book.expires_at(waiter)
        return expires <= self.now or self.now - (expires - waiter.ttl) > waiter.silence

    def _refuse_for_good(self, waiter: QueueEntry) -> None:
        """Refuse a waiter that asks for more units than the capacity is now."""
        self.set_tombstone(waiter.id, TOMBSTONE_TTL, "too_large")
        self._notify(waiter, "refused")

    def _grant_waiter(self, waiter: QueueEntry) -> None:
        """Turn a waiter into an unclaimed hold. Its owner must claim it within the claim timeout."""
        timeout = claim_timeout(waiter.grant_ttl)
        hold = Hold(
            id=waiter.id,
            owner=waiter.owner,
            token=self.take_token(waiter.floor),
            units=waiter.units,
            slots=self.free_slots(waiter.units),
            ttl=timeout,
            expires=self.now + timeout,
            beat=waiter.beat + 1,
            state="unclaimed",
            lock_delay=waiter.lock_delay,
            since=self.stamp,
            note=waiter.note,
            inbox=waiter.inbox,
            address=waiter.address,
            trace=waiter.trace,
        )
        self.book.put(hold)
        self.units_free_in = min(self.units_free_in, timeout)
        self._notify(hold, "granted", hold)

    # -- units, tokens, slots -----------------------------------------------------------------------

    def fits(self, units: int, *, queue: bool = True) -> bool:
        """True if there is room, and every waiter that is looked at is passed over.

        A try (`queue=False`) passes only waiters that missed a heartbeat: the others may be alive.
        """
        if self._is_full(units):
            return False
        is_passed = self._is_passed_over if queue else self._missed_heartbeat
        return not self.book.waiting or all(
            map(is_passed, islice(self.book.queue(), EXAMINED_POSITIONS))
        )

    def _is_full(self, units: int) -> bool:
        """True if there is no room for so many units, or for one more lease."""
        book = self.book
        return book.used + units > book.capacity or book.holding >= MAX_HOLDERS

    def take_token(self, floor: int) -> int:
        """The next fencing token of the key."""
        self.book.last = next_token(self.book.last, self.stamp, floor)
        return self.book.last

    def free_slots(self, units: int, own: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return `units` slots: `own`, then the lowest free ones. Empty if units are not numbered."""
        capacity = self.book.capacity
        if capacity > MAX_SLOTS:
            return ()
        if capacity == 1:
            return (0,)
        taken, slots = self.book.taken, list(own)
        while len(slots) < units:
            lowest = ~taken & (taken + 1)
            taken |= lowest
            slots.append(lowest.bit_length() - 1)
        return tuple(sorted(slots))

    # -- expiry and heartbeats ----------------------------------------------------------------------

    def left(self, entry: Entry, ttl: float) -> float:
        """Seconds until an entry expires if it is extended by `ttl`. Nothing is ever shortened."""
        return max(ttl, min(self.book.expires_at(entry) - self.now, entry.ttl))

    def extend(self, entry: Hold | QueueEntry, ttl: float) -> float:
        """Extend an entry to `ttl` from now, unless it already lasts longer. Returns the seconds left."""
        left = self.left(entry, ttl)
        entry.ttl = left
        entry.expires = self.now + left
        entry.beat += 1
        self.book.put(entry)
        return left

    def claim(self, hold: Hold, ttl: float) -> Granted:
        """Confirm a hold for its owner, for `ttl` from now."""
        hold.state = "held"
        return Granted(hold.token, hold.slots, self.extend(hold, ttl))

    def heartbeat(self, waiter: QueueEntry, ttl: float) -> Granted | Queued | Refused:
        """Answer a waiter's heartbeat: it may be granted at once, and needs no notification then."""
        if waiter.units > self.book.capacity:
            self.set_tombstone(waiter.id, TOMBSTONE_TTL, "too_large")
            return Refused("too_large")
        ahead = self.book.ahead_of(waiter)
        self._record_heartbeat(waiter, ahead)
        self.extend(waiter, waiter.ttl)
        return self._answer_waiter(waiter, ahead, ttl)

    def enqueue(self, waiter: QueueEntry) -> Granted | Queued:
        """Add a waiter to the queue, or grant it at once if it is its turn."""
        ahead = self.book.ahead_of(waiter)
        self._record_heartbeat(waiter, ahead)
        self.book.put(waiter)
        return self._answer_waiter(waiter, ahead, waiter.grant_ttl)

    def _answer_waiter(self, waiter: QueueEntry, ahead: int, ttl: float) -> Granted | Queued:
        """Settle, then answer a waiter that has just sent a command."""
        waiting = self.book.waiting
        self.settle()
        entry = self.book.get(waiter.id)
        if entry is waiter and self.fits(waiter.units):  # it is behind those that `settle` looks at
            self._grant_waiter(waiter)
            entry = self.book.get(waiter.id)
        if isinstance(entry, Hold):
            return self.claim(entry, ttl)
        if self.book.waiting != waiting:
            ahead = self.book.ahead_of(waiter)
        return Queued(ahead, self._next_heartbeat_in(waiter, ahead), self.now)

    def _record_heartbeat(self, waiter: QueueEntry, ahead: int) -> None:
        """Note that the owner is alive. The next heartbeat is due by `_next_heartbeat_in`."""
        timeout = claim_timeout(waiter.grant_ttl)
        is_front = (
            ahead < HEARTBEAT_POSITIONS
            or ahead - self._count_passed_over(ahead) < HEARTBEAT_POSITIONS
        )
        waiter.silence = timeout if is_front else 3 * timeout
        waiter.seen = self.book.last

    def _count_passed_over(self, ahead: int) -> int:
        """Count the waiters at the front that are passed over, up to the first one that is not."""
        first = islice(self.book.queue(), min(ahead, EXAMINED_POSITIONS))
        return sum(1 for _ in takewhile(self._is_passed_over, first))

    def _next_heartbeat_in(self, waiter: QueueEntry, ahead: int) -> float:
        """Seconds after which its owner should send its next heartbeat.

        The first waiter also asks when time frees units. A waiter farther back asks one claim timeout later,
        and when the grants of this command lapse: everybody before it may be dead, and so may be those who
        were granted. If `STEPS` ran out, there is more to do at once.
        """
        if not self.steps:
            return 0.0
        timeout = claim_timeout(waiter.grant_ttl)
        often = heartbeat_interval(timeout)
        is_front = waiter.silence == timeout  # as `_record_heartbeat` has set it
        if is_front and ahead:
            return often
        units_free_in = max(first_release(self.book) - self.now, 0.0)
        if is_front:
            return min(often, units_free_in)
        return min(waiter.ttl / 3, self.units_free_in, timeout + min(timeout, units_free_in))

    def retain(self, hold: Hold, seconds: float, tombstone: float) -> None:
        """Keep the units of an ended hold taken, by nobody."""
        self.book.put(
            Hold(
                id=hold.id,
                owner="",
                token=hold.token,
                units=hold.units,
                slots=hold.slots,
                ttl=seconds,
                expires=self.now + seconds,
                beat=hold.beat + 1,
                state="retained",
                tombstone=tombstone,
                since=hold.since,
                note=hold.note,
            )
        )

    def set_tombstone(
        self,
        entry_id: str,
        seconds: float,
        reason: Reason = "released",
        detail: str = "",
    ) -> None:
        """Remember that an id has ended.

        The beat is a number that this key has never used. An observer without the store's clock may have
        seen an earlier tombstone of this id, and must not take this one for the same.
        """
        self.book.arrivals = beat = self.book.arrivals + 1
        self.book.put(Tombstone(entry_id, seconds, self.now + seconds, beat, reason, detail))

    # -- notifications ------------------------------------------------------------------------------

    def notify_new_head(self, old: QueueEntry | None) -> None:
        """Notify the head of the queue if it is a new one: it must ask when time alone can free units."""
        first = self.book.first()
        if first is not None and (old is None or first.id != old.id):
            self._notify(first, "head")

    def notify_revoked(self, hold: Hold, reason: str) -> None:
        """Tell a holder to stop."""
        self._notify(hold, "revoked", detail=reason)

    def _notify(
        self,
        entry: Hold | QueueEntry,
        event: Event,
        hold: Hold | None = None,
        detail: str = "",
    ) -> None:
        if entry.id == self.caller:
            return
        grant = (hold.token, hold.slots, self.now, hold.ttl) if hold else (0, (), self.now, 0.0)
        proof = proof_of(self.key, entry.id, *grant) if hold else ""
        lease = fingerprint(entry.id)
        self.notifications.append(
            Notification(self.key, lease, entry.inbox, event, *grant, detail, proof)
        )
