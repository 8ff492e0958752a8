"""One command's turn at a book: what time has changed, and the steps that several rules share."""

from itertools import islice, takewhile
from math import inf
from typing import Literal

from dibs.core.book import Book, Entry, Hold, Place, Tomb, first_release
from dibs.core.names import fingerprint
from dibs.core.proof import proof_of
from dibs.core.timing import (
    BURIAL,
    FRONT,
    SIGHT,
    STEPS,
    claim_window,
    next_token,
    sign_of_life_after,
)
from dibs.model import MAX_HOLDERS, MAX_SLOTS, Event, Granted, Queued, Refused, Wakeup

type Reason = Literal["buried", "unclaimed", "too_large", "revoked"]

_ENDS_ITS_ID: dict[str, Reason] = {"unclaimed": "unclaimed", "revoked": "revoked"}
"""A hold that expires in one of these states ends its id: its owner may not know, and ask again."""


class Turn:
    """A book, the time, and the wakeups that come of it."""

    __slots__ = ("book", "caller", "free_in", "key", "now", "stamp", "steps", "wakeups")

    def __init__(
        self, book: Book, key: bytes, now: float, stamp: int, caller: str | None = None
    ) -> None:
        self.book = book
        self.key = key
        self.now = now
        self.stamp = stamp
        self.caller = caller
        """The id that is answered: it needs no push."""
        self.free_in = inf
        """When units that this turn has granted (perhaps to the dead) or closed are free again by time."""
        self.steps = STEPS
        """How many entries this turn may still end, and waiters grant or refuse."""
        self.wakeups: list[Wakeup] = []

    # -- settling: what time alone has changed ------------------------------------------------------

    def settle(self) -> None:
        """End what time has ended, then grant the head of the queue while it fits: as far as `STEPS` go.

        The rest is for later commands. Until then a hold that is over keeps its units taken, and a waiter
        that is over is passed over. What the caller itself has ends in any case.
        """
        book = self.book
        if self.steps:
            for entry in book.ended(self.now, self.steps):
                self._end(entry)
                self.steps -= 1
        if not self.steps and self.caller is not None:
            own = book.get(self.caller)
            if own is not None and book.expires_at(own) <= self.now:
                self._end(own)
        while self.steps and book.waiting and self._grant_next():
            self.steps -= 1

    def _end(self, entry: Entry) -> None:
        """An entry's time is over; what follows counts from then, however late we look."""
        late = self.now - self.book.expires_at(entry)
        if isinstance(entry, Hold):
            if entry.state == "unclaimed":
                self.book.doubt = max(self.book.doubt, entry.token)
            if entry.state != "kept" and entry.lock_delay > late:
                self.free_in = min(self.free_in, entry.lock_delay - late)
                bury = BURIAL if entry.state in _ENDS_ITS_ID else 0.0
                return self.keep(entry, entry.lock_delay - late, bury)
            bury = BURIAL if entry.state in _ENDS_ITS_ID else entry.bury
            if bury > late:
                reason = _ENDS_ITS_ID.get(entry.state, "buried")
                return self.bury(entry.id, bury - late, reason, entry.detail)
        self.book.remove(entry)

    def _grant_next(self) -> bool:
        """Grant the first waiter that is not passed over, if it fits; tell whether to look again."""
        book = self.book
        for place in islice(book.queue(), SIGHT):
            if place.units > book.capacity:
                self._refuse_for_good(place)
                return True
            if self._is_full(1):
                return False
            if self._silent(place):
                continue
            if book.used + place.units > book.capacity:
                return False
            self._push_grant(place)
            return True
        return False

    def _silent(self, place: Place) -> bool:
        """It missed its heartbeats, or was not heard of since a grant that nobody claimed."""
        return self._missed(place) or place.seen < self.book.doubt

    def _missed(self, place: Place) -> bool:
        """Its heartbeat is overdue, or its time is over."""
        expires = self.book.expires_at(place)
        return expires <= self.now or self.now - (expires - place.ttl) > place.silence

    def _refuse_for_good(self, place: Place) -> None:
        """The capacity has shrunk below what this place asks for."""
        self.bury(place.id, BURIAL, "too_large")
        self._wake(place, "refused")

    def _push_grant(self, place: Place) -> None:
        """The place becomes a hold that stands for a claim window until its owner speaks."""
        window = claim_window(place.grant_ttl)
        hold = Hold(
            id=place.id,
            owner=place.owner,
            token=self.take_token(place.floor),
            units=place.units,
            slots=self.free_slots(place.units),
            ttl=window,
            expires=self.now + window,
            beat=place.beat + 1,
            state="unclaimed",
            lock_delay=place.lock_delay,
            since=self.stamp,
            note=place.note,
            inbox=place.inbox,
            address=place.address,
            trace=place.trace,
        )
        self.book.put(hold)
        self.free_in = min(self.free_in, window)
        self._wake(hold, "granted", hold)

    # -- units, tokens, slots -----------------------------------------------------------------------

    def fits(self, units: int, *, queue: bool = True) -> bool:
        """There is room, and all waiters in sight are passed over.

        A try (`queue=False`) passes only those that missed a heartbeat. Others that are in doubt may live.
        """
        if self._is_full(units):
            return False
        is_passed = self._silent if queue else self._missed
        return not self.book.waiting or all(map(is_passed, islice(self.book.queue(), SIGHT)))

    def _is_full(self, units: int) -> bool:
        """There is no room for so many units more, or for one more lease."""
        book = self.book
        return book.used + units > book.capacity or book.holding >= MAX_HOLDERS

    def take_token(self, floor: int) -> int:
        """The next fencing token of the key."""
        self.book.last = next_token(self.book.last, self.stamp, floor)
        return self.book.last

    def free_slots(self, units: int, own: tuple[int, ...] = ()) -> tuple[int, ...]:
        """`own` and the lowest free slots, `units` of them; none where units aren't numbered."""
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

    # -- lives --------------------------------------------------------------------------------------

    def left(self, entry: Entry, ttl: float) -> float:
        """How long an entry lives that shall live `ttl` from now: never shorter than it would anyway."""
        return max(ttl, min(self.book.expires_at(entry) - self.now, entry.ttl))

    def extend(self, entry: Hold | Place, ttl: float) -> float:
        """Let an entry live `ttl` longer from now, or as long as it would anyway; return how long."""
        left = self.left(entry, ttl)
        entry.ttl = left
        entry.expires = self.now + left
        entry.beat += 1
        self.book.put(entry)
        return left

    def claim(self, hold: Hold, ttl: float) -> Granted:
        """The hold is its owner's for `ttl` from now."""
        hold.state = "held"
        return Granted(hold.token, hold.slots, self.extend(hold, ttl))

    def speak_up(self, place: Place, ttl: float) -> Granted | Queued | Refused:
        """The owner of a place is heard: it may be its turn already, and no push is needed then."""
        if place.units > self.book.capacity:
            self.bury(place.id, BURIAL, "too_large")
            return Refused("too_large")
        ahead = self.book.ahead_of(place)
        self._hear(place, ahead)
        self.extend(place, place.ttl)
        return self._in_line(place, ahead, ttl)

    def queue_up(self, place: Place) -> Granted | Queued:
        """A new place joins the queue, unless it is its turn at once."""
        ahead = self.book.ahead_of(place)
        self._hear(place, ahead)
        self.book.put(place)
        return self._in_line(place, ahead, place.grant_ttl)

    def _in_line(self, place: Place, ahead: int, ttl: float) -> Granted | Queued:
        """Where a place stands whose owner has just been heard."""
        waiting = self.book.waiting
        self.settle()
        entry = self.book.get(place.id)
        if entry is place and self.fits(place.units):  # from beyond what `settle` looks at
            self._push_grant(place)
            entry = self.book.get(place.id)
        if isinstance(entry, Hold):
            return self.claim(entry, ttl)
        if self.book.waiting != waiting:
            ahead = self.book.ahead_of(place)
        return Queued(ahead, self._recheck_in(place, ahead), self.now)

    def _hear(self, place: Place, ahead: int) -> None:
        """A heartbeat: its owner lives, and the next one is due by `_recheck_in`."""
        window = claim_window(place.grant_ttl)
        is_front = ahead < FRONT or ahead - self._passed_over(ahead) < FRONT
        place.silence = window if is_front else 3 * window
        place.seen = self.book.last

    def _passed_over(self, ahead: int) -> int:
        """How many of the first waiters are passed over, all before the first one that is not."""
        first = islice(self.book.queue(), min(ahead, SIGHT))
        return sum(1 for _ in takewhile(self._silent, first))

    def _recheck_in(self, place: Place, ahead: int) -> float:
        """When its owner should send its next heartbeat.

        The first one also looks when units come free by time. One from farther back looks a claim timeout
        after that, and when this turn's own grants end: then all before it may be dead, and those that were
        granted may be, too. Where `STEPS` ran out, there is more to do at once.
        """
        if not self.steps:
            return 0.0
        window = claim_window(place.grant_ttl)
        often = sign_of_life_after(window)
        is_front = place.silence == window
        if is_front and ahead:
            return often
        free_in = max(first_release(self.book) - self.now, 0.0)
        if is_front:
            return min(often, free_in)
        return min(place.ttl / 3, self.free_in, window + min(window, free_in))

    def keep(self, hold: Hold, seconds: float, bury: float) -> None:
        """The units of a hold that is over stay taken, by nobody."""
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
                state="kept",
                bury=bury,
                since=hold.since,
                note=hold.note,
            )
        )

    def bury(
        self,
        entry_id: str,
        seconds: float,
        reason: Reason = "buried",
        detail: str = "",
    ) -> None:
        """Remember that an id has ended.

        Its first beat is a number that the key never used: an observer without the store's clock may have
        seen an earlier tombstone of this id, and would take this one for as old.
        """
        self.book.arrivals = beat = self.book.arrivals + 1
        self.book.put(Tomb(entry_id, seconds, self.now + seconds, beat, reason, detail))

    # -- wakeups ------------------------------------------------------------------------------------

    def wake_new_head(self, old: Place | None) -> None:
        """Whoever has become the head must learn when time alone could change its answer."""
        first = self.book.first()
        if first is not None and (old is None or first.id != old.id):
            self._wake(first, "head")

    def wake_revoked(self, hold: Hold, reason: str) -> None:
        """The holder should stop."""
        self._wake(hold, "revoked", detail=reason)

    def _wake(
        self,
        entry: Hold | Place,
        event: Event,
        hold: Hold | None = None,
        detail: str = "",
    ) -> None:
        if entry.id == self.caller:
            return
        grant = (hold.token, hold.slots, self.now, hold.ttl) if hold else (0, (), self.now, 0.0)
        proof = proof_of(self.key, entry.id, *grant) if hold else ""
        lease = fingerprint(entry.id)
        self.wakeups.append(Wakeup(self.key, lease, entry.inbox, event, *grant, detail, proof))
