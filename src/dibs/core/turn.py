"""One command's turn at a book: what time has changed, and the steps that several rules share."""

from itertools import islice
from math import inf
from typing import Literal

from dibs.core.book import Book, Entry, Hold, Place, Tomb, first_release
from dibs.core.names import fingerprint
from dibs.core.timing import (
    BURIAL,
    FRONT,
    claim_window,
    next_token,
    sign_of_life_after,
)
from dibs.model import MAX_SLOTS, Event, Granted, Queued, Refused, Wakeup

type Reason = Literal["buried", "unclaimed", "too_large", "revoked"]

_ENDS_ITS_ID: dict[str, Reason] = {"unclaimed": "unclaimed", "revoked": "revoked"}
"""A hold that expires in one of these states ends its id: its owner may not know, and ask again."""


class Turn:
    """A book, the time, and the wakeups that come of it."""

    __slots__ = ("book", "caller", "free_in", "key", "now", "stamp", "wakeups")

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
        self.wakeups: list[Wakeup] = []

    # -- settling: what time alone has changed ------------------------------------------------------

    def settle(self) -> None:
        """Strike out what has ended, then grant the head of the queue while it fits."""
        for entry in self.book.ended(self.now):
            self._end(entry)
        if self.book.waiting:
            while self._grant_next():
                pass

    def _end(self, entry: Entry) -> None:
        """An entry's time is over; what follows counts from then, however late we look."""
        late = self.now - self.book.expires_at(entry)
        if isinstance(entry, Hold):
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
        """Grant the first place that speaks up, if it fits; tell whether to look again."""
        book = self.book
        for place in book.queue():
            if place.units > book.capacity:
                self._refuse_for_good(place)
                return True
            if self._silent(place):
                continue
            if book.used + place.units > book.capacity:
                return False
            self._push_grant(place)
            return True
        return False

    def _silent(self, place: Place) -> bool:
        """It was asked to speak up often, and let a whole claim window pass."""
        heard = self.book.expires_at(place) - place.ttl
        return place.near and self.now - heard > claim_window(place.grant_ttl)

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
            token=self.take_tokens(place.tokens, place.floor),
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

    def fits(self, units: int) -> bool:
        """There is room, and nobody who speaks up waits for it."""
        book = self.book
        if book.used + units > book.capacity:
            return False
        return not book.waiting or all(self._silent(place) for place in book.queue())

    def take_tokens(self, count: int, floor: int) -> int:
        """Reserve `count` tokens and return the first."""
        token = next_token(self.book.last, self.stamp, floor)
        self.book.last = token + count - 1
        return token

    def free_slots(self, units: int, own: tuple[int, ...] = ()) -> tuple[int, ...]:
        """`own` and the lowest free slots, `units` of them; none where units aren't numbered."""
        capacity = self.book.capacity
        if capacity > MAX_SLOTS:
            return ()
        if capacity == 1:
            return (0,)
        taken = {slot for hold in self.book.holds() for slot in hold.slots}
        free = (slot for slot in range(capacity) if slot not in taken)
        return tuple(sorted((*own, *islice(free, units - len(own)))))

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
        place.near = ahead < FRONT
        self.extend(place, place.ttl)
        return self._in_line(place, ahead, ttl)

    def queue_up(self, place: Place) -> Granted | Queued:
        """A new place joins the queue, unless it is its turn at once."""
        ahead = self.book.ahead_of(place)
        place.near = ahead < FRONT
        self.book.put(place)
        return self._in_line(place, ahead, place.grant_ttl)

    def _in_line(self, place: Place, ahead: int, ttl: float) -> Granted | Queued:
        """Where a place stands whose owner has just been heard."""
        waiting = self.book.waiting
        self.settle()
        entry = self.book.get(place.id)
        if isinstance(entry, Hold):
            return self.claim(entry, ttl)
        if self.book.waiting != waiting:
            ahead = self.book.ahead_of(place)
        return Queued(ahead, self._recheck_in(place, ahead), self.now)

    def _recheck_in(self, place: Place, ahead: int) -> float:
        """When its owner should speak again: the head also when units come free by time.

        So does one from farther back that came upon units whose time was over: those at the front would have
        seen it first, so they may all be dead, and whoever was granted them now may be, too.
        """
        if not place.near:
            return min(place.ttl / 3, self.free_in)
        often = sign_of_life_after(claim_window(place.grant_ttl))
        return often if ahead else min(often, max(first_release(self.book) - self.now, 0.0))

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
        token, slots, window = (hold.token, hold.slots, hold.ttl) if hold else (0, (), 0.0)
        lease = fingerprint(entry.id)
        self.wakeups.append(
            Wakeup(self.key, lease, entry.inbox, event, token, slots, self.now, window, detail)
        )
